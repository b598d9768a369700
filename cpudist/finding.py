"""One thing that a check has found: on this host (`cpudist doctor`), or on a host of a job (`cpudist launch`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["error", "warning", "ok"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """One line about one thing, with its remedy.

    Attributes:
        level: "error": a job would fail; "warning": it would be slower or lack a function; "ok": no fault.
        about: the thing, in a word or two.
        message: the result.
        remedy: what the user can do; empty if nothing is wrong.
    """

    level: Level
    about: str
    message: str
    remedy: str = ""
