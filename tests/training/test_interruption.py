"""`--checkpoint-on-signal`: all ranks agree on the step after which they stop, and no signal is lost without a word."""

import multiprocessing
import os
import signal
import subprocess
from multiprocessing.connection import Connection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from cpudist.errors import StartupTimeout
from cpudist.store.client import Address, StoreLost
from cpudist.store.process import StoreProcess
from cpudist.store.torch_store import JobStore
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.training.interruption import Interruption
from cpudist.waiting import poll

RANKS = 3


@given(st.data())
def test_all_ranks_stop_after_the_same_step(data: st.DataObject) -> None:
    """Whenever each comes to know of the signal, and in whatever order they end each step."""
    store = HashStore()
    ranks = [Interruption(rank, RANKS, store, Heartbeat(RANKS, None, 1)) for rank in range(RANKS)]
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
def test_a_signal_ends_a_rank_whose_store_is_lost() -> None:
    """As any failure does, without a checkpoint: the ranks cannot agree on a last step."""
    server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
    address = Address(("127.0.0.1",), server.port, b"token", keepalive_timeout=5)
    heartbeat = Heartbeat(2, address, 20)
    interruption = Interruption(0, 2, JobStore(address, timeout=20), heartbeat)
    try:
        interruption.begin()
        server.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert poll(lambda: interruption.signal == signal.SIGUSR1, 20)
        with pytest.raises((StoreLost, StartupTimeout)):
            interruption.is_last()
    finally:
        interruption.end()
        heartbeat.stop()


def _tell_pending(connection: Connection) -> None:
    while True:
        connection.recv()
        connection.send(len(signal.sigpending()))


@pytest.mark.job
def test_children_hear_only_their_parent() -> None:
    """A launcher's signal to the whole group must not end a worker; the end of a pool must."""
    heartbeat = Heartbeat(1, None, 1)
    interruption = Interruption(0, 1, HashStore(), heartbeat)
    interruption.begin()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_tell_pending, args=(theirs,))
    child.start()
    try:
        theirs.close()  # a child that has ended then is an EOFError
        for name in ("TERM", "INT", "USR1"):
            subprocess.run(["kill", "-s", name, str(child.pid)], check=True)

        def none_is_pending() -> bool:  # in which the next signal would be lost
            ours.send(None)
            return bool(ours.recv() == 0)

        assert poll(none_is_pending, 20)
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    finally:
        child.kill()  # otherwise the interpreter would wait for it at exit
        interruption.end()
        heartbeat.stop()
