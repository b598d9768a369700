"""Errors that users can correct, findings of checks, and the frames of the user's code in a traceback.

An error that a user can cause (a wrong option, a missing package, contradicting variables) is a `UserError`: one line
with cause and remedy. The command line prints this line without a traceback and exits with status 2.
"""

import os
import sysconfig
from dataclasses import dataclass
from functools import cache
from types import FrameType, TracebackType
from typing import Literal, get_args

USER_ERROR = 2  # the exit status of the command line
FAILED = 1  # the exit status of a failed job

_OWN_PROGRAMS = ("cpudist", "cpudist-train")  # which pip has made: their frame is beneath the script's
programs: set[str] = set()  # installed packages whose command this process runs: the user's code

Level = Literal["error", "warning", "ok"]
LEVELS: tuple[Level, ...] = get_args(Level)


class UserError(Exception):
    """A one-line message that names the cause and the remedy; exit status 2 on the command line.

    Examples:
        >>> try:
        ...     cpudist.Checkpoints("out", keep=0)
        ... except cpudist.UserError as error:
        ...     print(error)
        keep must be a whole number of checkpoints from 1 on, not 0
    """

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in a cell instead of a traceback."""
        return [f"cpudist: {self}"]


class StartupTimeout(UserError):
    """A rank did not arrive within the time limit while the job was starting. Exit status 1: a restart may help.

    Examples:
        >>> try:
        ...     world = cpudist.init(timeout=60)
        ... except cpudist.StartupTimeout:
        ...     sys.exit("a rank did not come within a minute")
    """


@dataclass(frozen=True)
class Finding:
    """The result of a check on this host (`cpudist doctor`), or on a host of a job (`cpudist launch`), in one line.

    Attributes:
        level: "error": a job would fail; "warning": it would be slower or lack a function; "ok": no fault.
        about: the subject of the check, in one or two words.
        message: the result.
        remedy: what the user can do; empty if nothing is wrong.
    """

    level: Level
    about: str
    message: str
    remedy: str = ""

    @property
    def line(self) -> str:
        return f"{self.about} {self.message}; {self.remedy}"


def is_user_code(frame: FrameType) -> bool:
    """Return whether a frame belongs to the user's program: a script with its modules, or a package of `programs`."""
    name = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__"))
    if module == "__main__":  # also in `python -c` and in notebook cells
        return os.path.basename(name) not in _OWN_PROGRAMS
    if module.partition(".")[0] in programs:
        return True
    if name.startswith("<"):  # generated code
        return False
    return not (name.startswith(_own_folders()) or "/site-packages/" in name or "/dist-packages/" in name)


def from_user_code(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of user code on; all of it if there is no such frame."""
    where = traceback
    while where is not None and not is_user_code(where.tb_frame):
        where = where.tb_next
    return where or traceback


@cache
def _own_folders() -> tuple[str, ...]:
    """Return the folders of Python's library and of this package."""
    folders = {
        *map(sysconfig.get_path, ("stdlib", "platstdlib")),
        os.path.dirname(os.__file__),
        os.path.dirname(__file__),
    }
    return tuple(os.path.join(os.path.abspath(path), "") for path in folders)
