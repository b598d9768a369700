"""Waits end in time for every timeout that a user or torch can give."""

from __future__ import annotations

import math
import socket
import threading
from datetime import timedelta

import pytest
from clocks import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.waiting import check_timeout, poll, usable


@given(st.floats() | st.just(timedelta.max.total_seconds()), st.floats(0, 10))
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


@pytest.mark.parametrize("seconds", [-1.0, 0.0, math.nan])
def test_without_time_it_looks_once(clock: Clock, seconds: float) -> None:
    assert poll(lambda: True, seconds)
