"""`--checkpoint-on-signal`: all ranks agree on the step after which they stop, and no signal is lost without a word."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from multiprocessing.connection import Connection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from cpudist.store.client import Address
from cpudist.store.process import StoreProcess
from cpudist.store.torch_store import JobStore
from cpudist.training.interruption import Interruption

RANKS = 3


@given(st.data())
def test_all_ranks_stop_after_the_same_step(data: st.DataObject) -> None:
    """Whenever each comes to know of the signal, and in whatever order they end each step."""
    store = HashStore()
    ranks = [Interruption(rank, RANKS, store) for rank in range(RANKS)]
    knows = [data.draw(st.integers(1, 5)) for _ in ranks]
    for step in range(1, 8):
        last = set()
        for rank in data.draw(st.permutations(range(RANKS))):
            if step == knows[rank]:
                ranks[rank].signal = signal.SIGTERM
            last.add(ranks[rank].is_last())
        assert len(last) == 1, (step, knows)
        if last.pop():
            assert max(knows) < step <= max(knows) + 2
            return
    raise AssertionError("they never stop")


@pytest.mark.job
def test_a_signal_does_what_it_did_before_where_the_store_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
    got: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    interruption = Interruption(
        0, 1, JobStore(Address(("127.0.0.1",), server.port, b"token", keepalive_timeout=5), timeout=20)
    )
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


def _tell_pending(connection: Connection) -> None:
    while True:
        connection.recv()
        connection.send(len(signal.sigpending()))


@pytest.mark.job
def test_children_hear_only_their_parent() -> None:
    """A launcher's signal to the whole group must not end a worker; the end of a pool must."""
    interruption = Interruption(0, 1, HashStore())
    interruption.begin()
    try:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        child = context.Process(target=_tell_pending, args=(theirs,))
        child.start()
        theirs.close()  # a child that has ended then is an EOFError
        for name in ("TERM", "INT", "USR1"):
            subprocess.run(["kill", "-s", name, str(child.pid)], check=True)
        pending, deadline = 1, time.monotonic() + 20
        while pending:  # the next signal would be lost in one that is still pending
            assert time.monotonic() < deadline
            ours.send(None)
            assert ours.poll(20)
            pending = ours.recv()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    finally:
        interruption.end()
