"""What a rank hands back to its notebook: its function's result, or how it failed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import time
import traceback
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle

from cpudist.console import one_line
from cpudist.errors import UserError

_HEAD_START = 1.0  # seconds; others may fail of a killed rank before its end is seen


class RankFailed(RuntimeError):
    """A rank has failed; the message names it, and holds its traceback if it has one."""


@dataclass(frozen=True)
class Result:
    """What rank 0's function has returned."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """How a rank has failed, or a whole node.

    Attributes:
        who: "rank 1 on node0".
        said: what is known, to follow that; its traceback, where it has one.
        at: when, in seconds of this machine's monotonic clock.
        how: it "raised" an exception, was "killed" by a signal, or "ended" without a word, as it does after
            another rank's failure.
        error: the exception, pickled; None where there was none or it cannot be.
        mistake: whether it was a `UserError`, which starting again would not mend.
        stopped: whether somebody has stopped it on purpose.
    """

    who: str
    said: str
    at: float
    how: Literal["raised", "killed", "ended"] = "raised"
    error: bytes | None = None
    mistake: bool = False
    stopped: bool = False

    @classmethod
    def of(cls, rank: int, error: BaseException, said: str) -> Failure:
        """The failure of this process by an exception, whose traceback is `said`."""
        pickled = None
        if isinstance(error, Exception):  # SystemExit and the like would end the notebook
            try:
                pickled = cloudpickle.dumps(error.with_traceback(None))
                pickle.loads(pickled)  # many exceptions can be written but not read
            except Exception:  # noqa: BLE001 - the traceback says it too
                pickled = None
        stopped = isinstance(error, KeyboardInterrupt)
        said = f"failed:\n\n{said}"
        return cls(_rank_here(rank), said, time.monotonic(), "raised", pickled, isinstance(error, UserError), stopped)

    @classmethod
    def without_a_word(cls, rank: int, status: int) -> Failure:
        """The failure of a rank that has ended with `status`, as `subprocess` has it, and handed nothing back."""
        now = time.monotonic()
        if status >= 0:
            return cls(_rank_here(rank), f"ended with exit status {status} and without a word", now, "ended")
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        hint = " (dmesg tells whether memory ran out)" if -status == signal.SIGKILL else ""
        return cls(_rank_here(rank), f"was killed by {name}{hint}", now, "killed")

    @property
    def blame(self) -> tuple[bool, float]:
        """By which failures are ordered; the first one is the cause of the others."""
        return self.how == "ended", self.at - _HEAD_START * (self.how == "killed")

    def to_json(self) -> str:
        """Without the exception itself: reading a pickle that a stranger may have put there runs what he likes."""
        return json.dumps(
            {"who": self.who, "said": self.said, "how": self.how, "mistake": self.mistake, "stopped": self.stopped}
        )

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """The failure of a rank of another node, whose clock is another one."""
        return cls(**json.loads(text), at=time.monotonic())

    def raise_here(self) -> None:
        """Raise the rank's own exception, with its traceback as the cause, or `RankFailed`."""
        told = RankFailed(f"{self.who} {self.said}")
        if self.error is None:
            raise told
        try:
            error = pickle.loads(self.error)
        except Exception:  # noqa: BLE001 - of a class that this node has not
            raise told from None
        if isinstance(error, UserError):
            raise error from None
        raise error from told


def traceback_of(error: BaseException, first: Any) -> str:
    """An exception's traceback from the frame `first` on, as Python would print it."""
    return "".join(traceback.format_exception(type(error), error, first)).rstrip()


class Mailbox:
    """Memory that a rank and its notebook share and that is gone with them: the rank leaves something there once.

    Args:
        descriptor: of an existing one, in the rank's process; None makes a new one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("cpudist-notebook") if descriptor is None else descriptor

    def leave(self, content: Result | Failure) -> None:
        """Put a result or a `Failure` there.

        Raises:
            UserError: it cannot be carried to another process.
        """
        try:
            data = cloudpickle.dumps(content)
        except Exception as error:  # noqa: BLE001 - objects raise what they like
            kind = type(getattr(content, "value", None)).__name__
            raise UserError(
                f"the function's result, of type {kind}, cannot be carried back to the notebook:"
                f" {one_line(str(error))}; return numbers, tensors or the like, or save it to a file"
            ) from None
        with open(f"/proc/self/fd/{self.descriptor}", "wb") as file:
            file.write(data)

    def content(self) -> Any:
        """What was left there; None if nothing."""
        with open(f"/proc/self/fd/{self.descriptor}", "rb") as file:
            return pickle.load(file) if os.fstat(file.fileno()).st_size else None

    def close(self) -> None:
        os.close(self.descriptor)


def _rank_here(rank: int) -> str:
    return f"rank {rank} on {socket.gethostname()}"
