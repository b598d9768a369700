"""A rank's answer to its notebook: the result of its function, or its failure."""

from __future__ import annotations

import json
import os
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

import cloudpickle

from cpudist import typed_json
from cpudist.console import one_line
from cpudist.errors import UserError
from cpudist.processes.lost_ranks import killed_by

_HEAD_START = 1.0  # other ranks may fail up to this long before a killed rank is noticed


class RankFailed(RuntimeError):
    """A rank has failed. The message names it and has its traceback, if there is one."""

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in a cell instead of a traceback through cpudist's code."""
        return [f"RankFailed: {self}"]


class CellInterrupted(KeyboardInterrupt):
    """The user has interrupted the cell."""

    def _render_traceback_(self) -> list[str]:
        return [f"cpudist: {self}"]


@dataclass(frozen=True)
class Result:
    """The value that the function returned on rank 0; None on the others."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """How a rank, or a whole node, has failed."""

    who: str  # the rank or node that failed, such as "rank 1 on node0"
    said: str  # the rest of a sentence that begins with `who`, and the traceback, if there is one
    at: float  # time of this machine's monotonic clock, in seconds
    # Whether it "raised" an exception, was "killed" by a signal, or "ended" with neither, as a rank does after the
    # failure of another one.
    how: Literal["raised", "killed", "ended"] = "raised"
    error: bytes | None = None  # the exception, pickled; None where there was none or it cannot be pickled
    mistake: bool = False  # whether it was a `UserError`, after which a restart is useless
    stopped: bool = False  # whether a user has interrupted the job

    @classmethod
    def of(cls, rank: int, error: BaseException, trace: str, waited_for: Sequence[str] = ()) -> Failure:
        """Return the failure of this process by an exception, with its traceback as text.

        If a collective timed out, name the ranks that it waited for: `waited_for` has sentences, the likely cause last.
        """
        if waited_for:
            return cls("a collective timed out:", "; ".join(reversed(waited_for)), time.monotonic())
        pickled = None
        if isinstance(error, Exception):  # SystemExit and the like would end the notebook
            try:
                pickled = cloudpickle.dumps(error.with_traceback(None))
                pickle.loads(pickled)  # many exceptions can be pickled but not unpickled
            except Exception:  # noqa: BLE001 - the traceback names it too
                pickled = None
        stopped = isinstance(error, KeyboardInterrupt)
        said = f"failed:\n\n{trace}"
        return cls(_rank_here(rank), said, time.monotonic(), "raised", pickled, isinstance(error, UserError), stopped)

    @classmethod
    def of_status(cls, rank: int, status: int) -> Failure:
        """Return the failure of a rank that ended with `status`, as `subprocess` has it, and published no `Failure`."""
        now = time.monotonic()
        if status >= 0:
            return cls(_rank_here(rank), f"ended with exit status {status} and without an exception", now, "ended")
        return cls(_rank_here(rank), killed_by(-status), now, "killed")

    @property
    def order(self) -> tuple[bool, float]:
        """Sort key of failures; the smallest one is the cause of the others."""
        return self.how == "ended", self.at - (_HEAD_START if self.how == "killed" else 0.0)

    def to_json(self) -> str:
        """Return the failure as text, without the exception: unpickling network data could run any code."""
        return json.dumps({name: value for name, value in vars(self).items() if name not in ("at", "error")})

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """Return the failure of another node's rank, with the present time of this machine's clock."""
        now = time.monotonic()
        try:
            return typed_json.read(cls, {**typed_json.last_line(text), "at": now})
        except (TypeError, ValueError):
            return cls("another node", "reports a failure by another version of cpudist; install the same there", now)

    def raise_here(self) -> NoReturn:
        """Raise the rank's exception, caused by a `RankFailed` with its traceback; without one, the `RankFailed`."""
        failed = RankFailed(f"{self.who} {self.said}")
        if self.error is None:
            raise failed
        try:
            error = pickle.loads(self.error)
        except Exception:  # noqa: BLE001 - this node may not have its class
            raise failed from None
        if isinstance(error, UserError):
            raise error from None
        raise error from failed


class ResultChannel:
    """Result channel from a rank to its notebook: a memory file with figures (PNG) and one result or failure."""

    of_rank_0: ClassVar[ResultChannel | None] = None  # set in rank 0's process only

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("cpudist-notebook") if descriptor is None else descriptor
        self._read = 0

    def publish(self, content: Result | Failure | bytes | None) -> None:
        """Write a figure, a result, a failure, or None: from now on this rank reports an interrupt as a failure."""
        try:
            data = cloudpickle.dumps(content)
        except Exception as error:  # noqa: BLE001 - objects raise what they like
            kind, reason = type(getattr(content, "value", None)).__name__, one_line(str(error))
            why = f"the function's result, of type {kind}, cannot be serialised for the notebook: {reason}"
            raise UserError(f"{why}; return numbers, tensors or the like, or save it to a file") from None
        with open(f"/proc/self/fd/{self.descriptor}", "ab") as file:
            file.write(data)

    def received(self) -> Iterator[Any]:
        """Yield the messages that have been completed since the last call."""
        with open(f"/proc/self/fd/{self.descriptor}", "rb") as file:
            file.seek(self._read)
            with suppress(EOFError, pickle.UnpicklingError):  # the rest is not written yet
                while True:
                    message = pickle.load(file)
                    self._read = file.tell()
                    yield message

    def close(self) -> None:
        os.close(self.descriptor)


def _rank_here(rank: int) -> str:
    return f"rank {rank} on {socket.gethostname()}"
