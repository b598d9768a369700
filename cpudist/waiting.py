"""Wait with a limit: for a condition (`poll`), or for a block of code that cannot be interrupted (`bounded`)."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.processes.ending import end_now

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1  # seconds
LONG_WAIT_SECONDS = 10.0  # One rank reports a longer wait.
_LONGEST_TIMEOUT = 1e9  # seconds: sockets, timers and timedelta take no infinity


def check_timeout(value: object, name: str = "timeout") -> float:
    """Return the user's timeout `name`, a number or a text, as `usable` seconds; UserError unless it is above 0."""
    try:
        seconds = 0.0 if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"{name} must be a number of seconds above 0, not {value!r}")
    return usable(seconds)


def usable(seconds: float, least: float = 0.0) -> float:
    """Limit a timeout to values that sockets and timers accept, from `least` to 31 years; NaN becomes `least`."""
    return min(max(least, seconds), _LONGEST_TIMEOUT)  # max returns its first argument if the second one is NaN


def poll(
    done: Callable[[], bool],
    timeout: float,
    meanwhile: Callable[[], object] | None = None,
    longest_pause: float = _LONGEST_PAUSE,
) -> bool:
    """Call `done` until it returns True, with growing pauses.

    Args:
        done: returns whether the awaited event has happened; called at least once.
        timeout: seconds to wait.
        meanwhile: called before each pause, to make progress that the other ranks may need.
        longest_pause: the longest pause in seconds.

    Returns:
        Whether `done` returned True in time.
    """
    deadline = time.monotonic() + usable(timeout)
    pause = _SHORTEST_PAUSE
    while not done():
        if time.monotonic() > deadline:
            return False
        if meanwhile is not None:
            meanwhile()
        time.sleep(pause)
        pause = min(2 * pause, longest_pause)
    return True


@contextmanager
def announced(describe: Callable[[], str], limit: float) -> Iterator[None]:
    """Print one line if the block takes more than 10 seconds: what it waits for, and `limit` in seconds.

    Another thread calls `describe`, which returns what the block waits for, or "" if another rank prints the line. Its
    errors are ignored.
    """

    def announce() -> None:
        with suppress(Exception):
            if line := describe():
                say(f"{line}, for at most {limit:g} s")

    with _after(LONG_WAIT_SECONDS, announce):
        yield


@contextmanager
def bounded(
    what: str, timeout: float, announces: bool = False, awaited: Callable[[], str] = lambda: "other ranks"
) -> Iterator[None]:
    """End this process with a line about `what` if the block, which cannot be interrupted, takes `timeout` seconds.

    Args:
        announces: whether this rank also prints a line if the block takes more than 10 seconds.
        awaited: returns the ranks that the block waits for, as this line names them; another thread calls it.
    """

    def end() -> None:
        why = "a rank is gone or cannot be reached; cpudist doctor --hostfile FILE looks for closed ports"
        end_now(1, f"{what} did not finish within {timeout:g} s: {why}")

    def line() -> str:
        return f"{what} is waiting for {awaited()}" if announces else ""

    with _after(usable(timeout), end), announced(line, timeout):
        yield


@contextmanager
def _after(seconds: float, action: Callable[[], object]) -> Iterator[None]:
    """Call `action` in another thread if the block takes `seconds`."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
