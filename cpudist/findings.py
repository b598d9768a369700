"""Findings: results of the checks of `cpudist doctor`, `launch` and `test`."""

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["error", "warning", "ok"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Finding:
    """The result of a check on this host (`cpudist doctor`), or on a host of a job (`cpudist launch`), in one line."""

    level: Level  # "error": a job would fail; "warning": it would be slower or lack a function; "ok": no fault
    about: str  # the subject of the check, in one or two words
    message: str  # the result
    remedy: str = ""  # what the user can do; empty if nothing is wrong

    @property
    def line(self) -> str:
        return f"{self.about} {self.message}; {self.remedy}"
