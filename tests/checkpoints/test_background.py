"""The thread that writes a checkpoint leaves the core to the training, until somebody waits for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.checkpoints import background
from cpudist.checkpoints.background import Background

_ENDS = """
from cpudist.checkpoints import background
background._BURST, background._PERIOD = 1e-9, 1e9
def work(pause):
    pause()
    print("written", flush=True)
background.Background().start(work)
"""


def test_it_pauses_until_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_BURST", 1e-9)
    monkeypatch.setattr(background, "_PERIOD", 1e9)
    thread, begun, done = Background(), threading.Event(), threading.Event()

    def work(pause: Callable[[], None]) -> None:
        begun.set()
        pause()
        done.set()

    for _ in range(2):  # the next one pauses again
        begun.clear()
        done.clear()
        thread.start(work)
        assert begun.wait(60)
        assert not done.wait(0.3)
        thread.wait()
        assert done.is_set()


@given(now=st.floats(1e9, 1e10), bursts=st.floats(1, 100))
def test_bursts_begin_at_the_same_time_on_all_ranks_and_take_their_share(now: float, bursts: float) -> None:
    pause = background._pause(now, bursts * background._BURST)
    periods = (now + pause) / background._PERIOD
    assert periods == pytest.approx(round(periods), rel=1e-12)
    assert pause > 0
    assert pause / background._PERIOD == pytest.approx(bursts, abs=0.51)


@pytest.mark.job
def test_the_end_of_the_interpreter_does_not_wait_for_pauses() -> None:
    ended = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout == "written\n"
