"""`--checkpoint-on-signal`: all ranks agree on the step after which they stop, and no signal is lost without a word."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

from cpudist.rendezvous.connection import Address
from cpudist.rendezvous.process import StoreProcess
from cpudist.rendezvous.store import JobStore
from cpudist.training.interruption import Interruption

RANKS = 3


@settings(deadline=None)
@given(st.data())
def test_all_ranks_stop_after_the_same_step(data: st.DataObject) -> None:
    """Whenever each comes to know of the signal, and in whatever order they end each step."""
    store = HashStore()
    ranks = [Interruption(rank, RANKS, store) for rank in range(RANKS)]
    knows = [data.draw(st.integers(1, 5)) for _ in ranks]
    for step in range(1, 8):
        ended = {}
        for rank in data.draw(st.permutations(range(RANKS))):
            if step == knows[rank]:
                ranks[rank].signal = signal.SIGTERM
            ended[rank] = ranks[rank].is_last()
        assert len(set(ended.values())) == 1, (step, ended)
        if ended[0]:
            assert max(knows) < step <= max(knows) + 2
            return
    raise AssertionError("they never stop")


def test_a_signal_does_what_it_did_before_where_the_store_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    server = StoreProcess(["127.0.0.1"], 0, b"token", silence=5)
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    interruption = Interruption(0, 1, JobStore(Address(("127.0.0.1",), server.port, b"token", silence=5), timeout=20))
    try:
        interruption.begin()
        server.close()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "cpudist-signals")
        thread.join(20)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert got == [signal.SIGUSR1]
        said = capfd.readouterr().err
        assert "warning: rank 0 lost the job's store: " in said
        assert "from now on signals end the job without a checkpoint" in said
    finally:
        interruption.end()
        signal.signal(signal.SIGUSR1, before)


def _end_soon(seconds: float) -> None:
    time.sleep(seconds)


def test_children_hear_only_their_parent() -> None:
    """A launcher's signal to the whole group must not end a worker; the end of a pool must."""
    interruption = Interruption(0, 1, HashStore())
    interruption.begin()
    try:
        child = multiprocessing.get_context("fork").Process(target=_end_soon, args=(60,))
        child.start()
        for name in ("TERM", "INT", "USR1"):
            subprocess.run(["kill", "-s", name, str(child.pid)], check=True)
        child.join(0.5)
        assert child.is_alive()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    finally:
        interruption.end()
