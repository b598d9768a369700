"""Write a line that gives the reason, and end this process at once."""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from cpudist.console import in_time, say

# Called by `end_now` after it has written a line, so that no other rank reports this process as lost.
after_last_line: set[Callable[[], object]] = set()


def flush_output(line: str = "") -> None:
    """Write `line` and flush standard output and standard error, for at most two seconds."""

    def write() -> None:
        if line:
            say(line)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()

    in_time(write)  # another thread may hold the stream's lock, blocked in a write of its own


def end_now(status: int, line: str = "") -> NoReturn:
    """Write `line` and end this process without finalizers, which could wait for a lost peer."""
    try:
        flush_output(line)
        for report in after_last_line if line else ():
            in_time(report)
    finally:
        os._exit(status)
