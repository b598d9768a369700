"""Ending this process at once, whatever it is doing: the one way in which cpudist does it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import NoReturn

from cpudist.console import say

_WORDS_SECONDS = 2.0  # for what is still to be written; a full pipe or disk takes it for ever


def end_now(status: int, line: str = "") -> NoReturn:
    """End this process without finalizers, which could wait for a lost peer.

    Args:
        status: the exit status.
        line: what to say first.
    """
    try:
        last_words(line)
    finally:
        os._exit(status)


def last_words(line: str = "") -> None:
    """Write what is still to be written, as far as that is possible at all within two seconds."""

    def write() -> None:
        if line:
            say(line)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()

    # Another thread may hold the stream's lock, blocked in a write of its own.
    writer = threading.Thread(target=write, daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started
        writer.start()
        writer.join(_WORDS_SECONDS)
