"""Waits end in time for every timeout that a user or torch can give."""

import math
import socket
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
from clocks import Clock
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cpudist import waiting
from cpudist.errors import UserError
from cpudist.waiting import check_timeout, poll, usable


@given(st.floats() | st.just(timedelta.max.total_seconds()), st.floats(0, 10))
@example(math.nan, 0.0)
def test_sockets_and_timers_take_what_is_usable(seconds: float, least: float) -> None:
    found = usable(seconds, least)
    assert least <= found < math.inf
    assert found == seconds or not least <= seconds <= 1e9
    timedelta(seconds=found)
    assert found <= threading.TIMEOUT_MAX
    with socket.socket() as one:
        one.settimeout(found)


@given(st.floats() | st.integers() | st.text() | st.booleans() | st.none())
def test_a_users_timeout_is_usable_or_an_error(value: object) -> None:
    try:
        seconds = check_timeout(value)
    except UserError:
        return
    assert 0 < seconds == usable(seconds)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(max_value=1000.0))
def test_what_never_happens_ends_in_time_with_ever_fewer_looks(clock: Clock, seconds: float) -> None:
    begin, looks = clock.now, []
    assert not poll(lambda: bool(looks.append(clock.now)), seconds, longest_pause=2.0)
    assert clock.now - begin <= usable(seconds) + 2.0
    assert 1 <= len(looks) <= 13 + usable(seconds) / 2


def _none() -> str:
    raise RuntimeError("what it waits for is not known")


@pytest.mark.parametrize(
    ("describe", "seconds", "said"),
    [
        (lambda: "waiting for rank 1", 0.0, "cpudist: waiting for rank 1, for at most 300 s\n"),
        (lambda: "waiting for rank 1", 60.0, ""),
        (lambda: "", 0.0, ""),  # another rank says it
        (_none, 0.0, ""),
    ],
)
def test_a_long_wait_is_announced_once(
    describe: Callable[[], str],
    seconds: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", seconds)
    threads = set(threading.enumerate())
    with waiting.announced(describe, 300):
        assert waiting.poll(lambda: seconds > 0 or not set(threading.enumerate()) - threads, 20)
    assert capsys.readouterr().err == said


def test_one_rank_announces_a_bounded_wait(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", 0.0)
    for announces in (False, True):
        with waiting.bounded("MPI_Init", 60, announces):
            waiting.poll(lambda: False, 0.2)
    assert capsys.readouterr().err.count("MPI_Init") == 1
