"""Waiting with a bound: nothing in cpudist waits for another process in any other way, but MPI_Finalize at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cpudist.ending import end_now

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1  # seconds


def poll(done: Callable[[], bool], timeout: float, meanwhile: Callable[[], object] | None = None) -> bool:
    """Ask `done` again and again until it says yes, with growing pauses up to a tenth of a second.

    Args:
        done: whether what is waited for has happened.
        timeout: seconds after which to give up.
        meanwhile: called before each pause, to move something on that others may need before they can come.

    Returns:
        What `done` said last: False when the time was over.
    """
    deadline = time.monotonic() + timeout
    pause = _SHORTEST_PAUSE
    while not done():
        if time.monotonic() > deadline:
            return False
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return True


@contextmanager
def bounded(what: str, timeout: float) -> Iterator[None]:
    """End this process, with a line, when the block, which cannot be interrupted, takes over `timeout` seconds."""

    def end() -> None:
        end_now(1, f"{what} did not finish within {timeout:g} s: a rank is gone or cannot be reached; ending")

    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
