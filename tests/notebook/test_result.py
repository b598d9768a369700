"""What comes back to the cell: a rank's output, its result, or the failure that is the cause of the others."""

import io
import math
import os
import socket
import sys
import threading
from dataclasses import replace

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.notebook.ranks import Output
from cpudist.notebook.result import Failure, RankFailed, Result, ResultChannel

HOST = socket.gethostname()


class Twofold(Exception):
    """Can be pickled and not unpickled: its __init__ takes two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def test_the_cause_comes_first() -> None:
    """A killed rank comes first even if others fail before its end is noticed. A rank that just ends comes last."""
    raised, killed = Failure("a", "", at=10.0), Failure("b", "", at=10.5, how="killed")
    late, ended = Failure("c", "", at=12.0, how="killed"), Failure("d", "", at=1.0, how="ended")
    assert sorted([ended, late, raised, killed], key=lambda one: one.order) == [killed, raised, late, ended]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("x"), ValueError, "^x$"),
        (UserError("x"), UserError, "^x$"),
        (SystemExit(3), RankFailed, f"^rank 1 on {HOST} failed:\n\nsaid$"),
        (Twofold(1, 2), RankFailed, f"^rank 1 on {HOST} failed:\n\nsaid$"),
    ],
)
def test_an_exception_comes_as_it_is_where_it_can(error: BaseException, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        Failure.of(1, error, "said").raise_here()


@pytest.mark.parametrize("text", ["", "[]", "null", "\0", '{"who": "a"}', '{"who": "a", "said": "b", "error": "x"}'])
def test_a_failure_that_another_version_reports_is_one_too(text: str) -> None:
    found = Failure.from_json(text)
    assert (found.error, found.mistake) == (None, False)
    own = Failure("rank 1", "failed", math.inf, "killed", b"pickled", mistake=True)
    assert replace(Failure.from_json(own.to_json()), at=math.inf) == replace(own, error=None)


@pytest.mark.job
def test_a_channel_is_shared_and_read_once() -> None:
    channel = ResultChannel()
    try:
        assert list(channel.received()) == []
        if (child := os.fork()) == 0:
            ResultChannel(channel.descriptor).publish(b"picture")
            ResultChannel(channel.descriptor).publish(Result([1, "two"]))
            os._exit(0)
        os.waitpid(child, 0)
        assert list(channel.received()) == [b"picture", Result([1, "two"])]
        with open(f"/proc/self/fd/{channel.descriptor}", "ab", buffering=0) as file:
            for byte in cloudpickle.dumps(Result("late")):  # a rank may be killed while it writes
                assert list(channel.received()) == []
                file.write(bytes([byte]))
        assert list(channel.received()) == [Result("late")]
        with pytest.raises(UserError, match=r"the function's result, of type lock, cannot be serialised"):
            channel.publish(Result(threading.Lock()))
    finally:
        channel.close()


def _shown(pieces: list[bytes], prefix: str | None, whole: bool) -> str:
    with pytest.MonkeyPatch.context() as patch:
        screen = io.StringIO(newline="")
        patch.setattr(sys, "stdout", screen)
        output = Output("stdout", prefix, whole)
        for piece in [*pieces, b""]:
            output.write(piece)
        return screen.getvalue()


@given(text=st.text(alphabet="aé\r\n", max_size=30), size=st.integers(1, 5))
def test_no_output_is_lost_or_changed_in_pieces_of_any_size(text: str, size: int) -> None:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert _shown(pieces, None, False) == text
    assert _shown(pieces, "> ", True).replace("> ", "").removesuffix("\n") == text.removesuffix("\n")


def test_a_progress_bar_is_redrawn_behind_its_prefix() -> None:
    bar = [b"\r 10%", b"\r 20%", b"\r100%\n"]
    assert _shown(bar, "[1] ", True) == "\r[1]  10%\r[1]  20%\r[1] 100%\n"
