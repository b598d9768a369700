"""Find the frames of Python's stack that are the user's code."""

from __future__ import annotations

import os
import site
import sysconfig
from functools import cache
from types import FrameType, TracebackType


def is_user_code(frame: FrameType) -> bool:
    """Return whether a frame is of the user's script or modules, not of an installed package."""
    if frame.f_globals.get("__name__") == "__main__":  # also `python -c`, and cells of notebooks
        return True
    name = frame.f_code.co_filename
    if name.startswith("<"):  # generated code
        return False
    return not name.startswith(_installed())  # a relative path is the user's


def from_user_code(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of user code on; all of it where there is no such frame."""
    where = traceback
    while where is not None and not is_user_code(where.tb_frame):
        where = where.tb_next
    return where or traceback


@cache
def _installed() -> tuple[str, ...]:
    """Return the folders of installed code."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {
        *site.getsitepackages(),
        site.getusersitepackages(),
        os.path.dirname(os.__file__),
        os.path.dirname(__file__),
    }
    return tuple(os.path.join(os.path.abspath(path), "") for path in folders)
