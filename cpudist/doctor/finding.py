"""One thing that a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["error", "warning", "ok"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """One line about one thing, and what to do about it.

    Attributes:
        level: "error": a job would fail; "warning": it would run, slower or not in every way; "ok": as it should be.
        about: a word or two that name the thing.
        message: what was found.
        remedy: what to do; empty where there is nothing to do.
    """

    level: Level
    about: str
    message: str
    remedy: str = ""
