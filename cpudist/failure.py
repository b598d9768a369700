"""One rank fails, the job ends: everywhere, within seconds, and the reason is on screen once.

The first rank to fail claims the failure (watch.py), prints its traceback and one line that names the rank,
the host and the exception, and ends the job; later failures, mostly its consequences, stay silent. Under MPI
the end is `MPI_Abort`. Elsewhere the process ends; torchrun's agent or the other ranks' own watch ends the
others.

`cpudist.init()` installs this, so it holds for plain scripts as well as under `cpudist-train`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from cpudist.errors import UserError
from cpudist.watch import GRACE_SECONDS, Watch, end_process, name_of, say

if TYPE_CHECKING:
    from cpudist.world import World

USER_ERROR = 2
INTERRUPTED = 130

Show = Callable[[BaseException], None]

_watch: Watch | None = None
_world: World | None = None


def watch(world: World, store: Any, timeout: float) -> None:
    """From here to `finish`, an uncaught exception on any rank ends the job everywhere.

    Not in notebooks and interactive sessions, where an exception is no end of anything.
    """
    global _watch, _world
    if _watch is None and not _is_interactive():
        _watch, _world = Watch(world, store, timeout), world
        atexit.register(finish)
        os.register_at_fork(after_in_child=_forget)
        sys.excepthook = _hook


def _forget() -> None:
    """In a forked child: it is no rank of the job."""
    global _watch
    if _watch is not None:
        _watch = None
        atexit.unregister(finish)
        sys.excepthook = _previous_hook


def keep_excepthook() -> None:
    """Take the excepthook back from torch: init_process_group puts one around it that withholds output."""
    if _watch is not None:
        sys.excepthook = _hook


_previous_hook = sys.excepthook


def _hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if _watch is None:
        _previous_hook(kind, error, where)
    else:
        fail(error, show=lambda error: _previous_hook(kind, error, where))


def set_timeout(seconds: float) -> None:
    """Bound the wait for the other ranks in `finish`."""
    if _watch is not None:
        _watch.timeout = seconds


def on_failure(action: Callable[[], None]) -> None:
    """Let rank 0 do `action` before a failing job ends; it may run in another thread than the main one."""
    if _watch is not None:
        _watch.on_failure = action


def finish() -> None:
    """Come to a good end together with the other ranks; does nothing when that has been done."""
    global _watch
    if _watch is not None:
        _watch.finish()
        _watch = None


def fail(error: BaseException, show: Show = traceback.print_exception, rank: int | None = None) -> NoReturn:
    """End the job because of `error`; `show` prints its traceback.

    Before the ranks have met they cannot agree on who reports. Mostly all have the same error then, so rank 0
    speaks at once, and any other `rank` only if the job is still there a moment later: the error was that
    rank's alone.
    """
    status = exit_status(error)
    if _watch is None or _world is None:
        if rank:
            time.sleep(GRACE_SECONDS)
        _report(error, show, "" if rank is None else f"rank {rank}")
        end_process(status)
    claimed = _watch.claim()
    if claimed:
        _report(error, show, name_of(_world))
    _watch.end_job(status, reported=claimed)


def exit_status(error: BaseException) -> int:
    """The exit status that stands for `error`; never 0."""
    if isinstance(error, UserError):
        return USER_ERROR
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF or 1
    return 1


def describe(error: BaseException) -> str:
    """An exception as the last line of its traceback; of `sys.exit("words")` the words."""
    if isinstance(error, SystemExit):
        return f"exit status {error.code}" if isinstance(error.code, int) else _one_line(str(error))
    return _one_line("".join(traceback.format_exception_only(type(error), error)))


def _report(error: BaseException, show: Show, who: str) -> None:
    if isinstance(error, UserError):
        say(_one_line(str(error)))
    elif not isinstance(error, KeyboardInterrupt):
        if not isinstance(error, SystemExit):
            show(error)
        say(f"{who or 'this process'} failed: {describe(error)}; ending the job")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _is_interactive() -> bool:
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
