"""Frames of the user's code in a traceback or a stack."""

import os
import sysconfig
from functools import cache
from types import FrameType, TracebackType

_OWN_PROGRAMS = ("cpudist", "cpudist-train")  # files made by pip, whose `__main__` is not the user's
programs: set[str] = set()  # installed packages whose command this process runs; they count as user code


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
    """Return the folders of Python's standard library and of this package."""
    folders = {
        *map(sysconfig.get_path, ("stdlib", "platstdlib")),
        os.path.dirname(os.__file__),
        os.path.dirname(os.path.dirname(__file__)),
    }
    return tuple(os.path.join(os.path.abspath(path), "") for path in folders)
