"""The cause is found among several failures, and the caller gets what a rank returns."""

import os
import socket
import threading

import cloudpickle
import pytest

from cpudist.errors import UserError
from cpudist.notebook.result import Failure, Mailbox, RankFailed, Result

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


@pytest.mark.job
def test_a_mailbox_is_shared_and_read_once() -> None:
    mailbox = Mailbox()
    try:
        assert list(mailbox.arrived()) == []
        if os.fork() == 0:
            Mailbox(mailbox.descriptor).leave(b"picture")
            Mailbox(mailbox.descriptor).leave(Result([1, "two"]))
            os._exit(0)
        os.wait()
        assert list(mailbox.arrived()) == [b"picture", Result([1, "two"])]
        with open(f"/proc/self/fd/{mailbox.descriptor}", "ab", buffering=0) as file:
            for byte in cloudpickle.dumps(Result("late")):  # a rank may be killed while it writes
                assert list(mailbox.arrived()) == []
                file.write(bytes([byte]))
        assert list(mailbox.arrived()) == [Result("late")]
        with pytest.raises(UserError, match=r"the function's result, of type lock, cannot be carried back"):
            mailbox.leave(Result(threading.Lock()))
    finally:
        mailbox.close()
