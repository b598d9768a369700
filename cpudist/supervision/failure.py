"""End the job on all ranks within seconds after one rank fails, with one report.

The first rank to fail claims the failure (watch.py), prints its traceback and one line with the rank, the host and the
exception, and ends the job. Later failures are mostly consequences of the first and are not reported. Under MPI the job
ends by `MPI_Abort`. Elsewhere the rank ends, and torchrun's agent or the other ranks' watches end the other ranks.

Mostly a connection breaks because the rank at its other end has ended or has left the group. So a rank with such an
error waits some seconds before it reports the error: the watch, the launcher or the store knows which rank has ended.
"""

import re
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from cpudist.console import one_line, say
from cpudist.errors import USER_ERROR, StartupTimeout, UserError
from cpudist.supervision.abort import abort
from cpudist.supervision.watch import GRACE_SECONDS, RanksMissing, Watch
from cpudist.world import name_of

INTERRUPTED = 130
_LONGEST = 240  # Most characters of an error in the report's last line; its whole text is printed above.

# gloo (torch 2.8 to 2.13) raises RuntimeError with these words if the other process has ended or left the group.
_PEER_GONE = re.compile("connection (closed|reset) by peer|broken pipe", re.IGNORECASE)

Show = Callable[[BaseException], None]
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], None]


def fail(
    error: BaseException,
    watch: Watch | None,
    show: Show = traceback.print_exception,
    rank: int | None = None,
    before_the_end: Callable[[int], None] = lambda _status: None,
) -> NoReturn:
    """End the job because of `error`.

    Without a `watch` the ranks cannot agree on which of them reports. Most likely all have the same error, so rank 0
    reports it at once, and another rank reports its own only if it still runs a few seconds later.

    Args:
        error: the error of this rank.
        watch: this rank's watch; None before the rendezvous and in a job of one process.
        show: prints the error's traceback.
        rank: this process's rank; None: unknown.
        before_the_end: called with the exit status after the report, if there is no `watch`.
    """
    status = exit_status(error)
    if watch is None:
        if rank:
            time.sleep(GRACE_SECONDS)
        who = "this process" if rank is None else f"rank {rank} on {socket.gethostname()}"
        _report(error, show, who, alone=bool(rank))
        before_the_end(status)
        abort(status)
    if _is_of_peer(error):
        time.sleep(GRACE_SECONDS)  # If a rank was lost, the watch or the launcher ends this process meanwhile.
    claimed = watch.claim()
    if claimed:
        if waited := waited_for(error, watch):  # this rank is not the cause
            show(error)
            for sentence in (*waited[:-1], f"{waited[-1]}; ending the job"):
                say(sentence)
        else:
            _report(error, show, name_of(watch.world))
    watch.end_job(status, reported=claimed)


def excepthook(end: Callable[[BaseException, Show], NoReturn]) -> ExceptHook:
    """Return a `sys.excepthook` that calls `end` to end the job; the present hook prints the traceback."""
    print_traceback = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        end(error, lambda error: print_traceback(kind, error, where))

    return hook


def exit_status(error: BaseException) -> int:
    """Return the exit status for `error`; never 0."""
    if isinstance(error, UserError) and not isinstance(error, StartupTimeout):  # a restart may help after a timeout
        return USER_ERROR
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF or 1
    return 1


def describe(error: BaseException) -> str:
    """Return the type and the beginning of the text of `error` in one line; for `sys.exit("text")` only the text."""
    if isinstance(error, SystemExit):
        return f"exit status {error.code}" if isinstance(error.code, int) else one_line(str(error))
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # str names file and line; the traceback's last line does not
    text = one_line("".join(traceback.format_exception_only(type(error), error)))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def waited_for(error: BaseException, watch: Watch | None) -> list[str]:
    """Return sentences about the ranks that have caused a collective's error on this rank, most likely cause last."""
    if watch is None or not isinstance(error, RuntimeError):  # torch's errors of collectives are RuntimeErrors
        return []
    if "timed out" in str(error).lower():
        return watch.waits.explain(timed_out=True)
    return watch.waits.explain(ended=True) if _is_of_peer(error) else []


def _is_of_peer(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and _PEER_GONE.search(str(error)) is not None


def _report(error: BaseException, show: Show, who: str, alone: bool = False) -> None:
    """Print an error; a `UserError` without the rank's name, unless only this rank has it (`alone`)."""
    if isinstance(error, UserError):
        say(f"{who}: {one_line(str(error))}" if alone else one_line(str(error)))
    elif isinstance(error, RanksMissing):  # this rank is not the cause
        say(f"{error}; ending the job")
    elif not isinstance(error, KeyboardInterrupt):
        if not isinstance(error, SystemExit):
            show(error)
        say(f"{who} failed: {describe(error)}; ending the job")
