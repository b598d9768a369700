"""One rank fails, the job ends: everywhere, within seconds, and the reason is on screen once.

The first rank to fail claims the failure (watch.py), prints its traceback and one line that names the rank, the host
and the exception, and ends the job. Later failures are mostly consequences of the first and stay silent. Under MPI the
end is `MPI_Abort`. Elsewhere the process ends, and torchrun's agent or the other ranks' own watch ends the others.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from cpudist.console import one_line, say
from cpudist.errors import USER_ERROR, UserError
from cpudist.job.abort import abort
from cpudist.job.watch import GRACE_SECONDS, Watch, name_of

INTERRUPTED = 130

Show = Callable[[BaseException], None]
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


def fail(
    error: BaseException,
    watch: Watch | None,
    show: Show = traceback.print_exception,
    rank: int | None = None,
    before_the_end: Callable[[], None] = lambda: None,
) -> NoReturn:
    """End the job because of `error`.

    Without a `watch` the ranks have not met and cannot agree on who reports. Most likely all have the same error then,
    so rank 0 reports at once. Another rank waits a moment first: if the job still runs, no other rank has the error.

    Args:
        error: what this rank failed with.
        watch: the way to the other ranks, if they have met.
        show: prints the error's traceback.
        rank: this process's, where it is known without having met the others.
        before_the_end: what a process without others does after it has reported.
    """
    status = exit_status(error)
    if watch is None:
        if rank:
            time.sleep(GRACE_SECONDS)
        _report(error, show, "this process" if rank is None else f"rank {rank}")
        before_the_end()
        abort(status)
    claimed = watch.claim()
    if claimed:
        for sentence in watch.who_is_missing() if _has_timed_out(error) else ():
            say(sentence)
        _report(error, show, name_of(watch.world))
    watch.end_job(status, reported=claimed)


def excepthook(end: Callable[[BaseException, Show], NoReturn]) -> ExceptHook:
    """A `sys.excepthook` by which an uncaught exception ends the job; the present one prints the traceback."""
    print_traceback = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        end(error, lambda error: print_traceback(kind, error, where))

    return hook


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
        return f"exit status {error.code}" if isinstance(error.code, int) else one_line(str(error))
    return one_line("".join(traceback.format_exception_only(type(error), error)))


def is_interactive() -> bool:
    """Whether this is a notebook or an interactive session, which an exception does not end."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        return True
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None


def _has_timed_out(error: BaseException) -> bool:
    """Whether a collective has: torch has no type of its own for this."""
    return isinstance(error, RuntimeError) and "timed out" in str(error).lower()


def _report(error: BaseException, show: Show, who: str) -> None:
    if isinstance(error, UserError):
        say(one_line(str(error)))
    elif not isinstance(error, KeyboardInterrupt):
        if not isinstance(error, SystemExit):
            show(error)
        say(f"{who} failed: {describe(error)}; ending the job")
