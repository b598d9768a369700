"""`--checkpoint-on-signal`: ranks agree on their last step, no signal is lost. `--log-dir`: a file for each rank."""

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import completed, mpirun, run, train
from observed import Observed
from torch.distributed import HashStore

from cpudist.errors import StartupTimeout, UserError
from cpudist.observability.record import RunRecord
from cpudist.observability.training_figures import Training
from cpudist.store.client import Address, StoreLost
from cpudist.store.process import StoreProcess
from cpudist.store.torch_store import JobStore
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.interruption import Interruption
from cpudist.training.output_log import log_output
from cpudist.training.run_target import _warn_own_loop
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


def test_an_own_loop_hears_once_that_no_signal_saves_it(capsys: pytest.CaptureFixture[str]) -> None:
    for own, lines in ((True, 1), (False, 0)):
        job: Any = Observed()
        job.record = RunRecord(job)
        _warn_own_loop(job)
        if not own:
            job.record.training = Training(job.counter)  # as Trainer does
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        optimizer.step()
        optimizer.step()
        assert capsys.readouterr().err.count("--checkpoint-on-signal saves in Trainer's loop only") == lines
        job.changes.undo()


@pytest.fixture
def recording() -> Iterator[None]:
    """This process records signals, as a rank with `--checkpoint-on-signal` does."""
    heartbeat = Heartbeat(1, None, 1)
    interruption = Interruption(0, 1, HashStore(), heartbeat)
    interruption.begin()
    yield
    interruption.end()
    heartbeat.stop()


@pytest.mark.job
@pytest.mark.usefixtures("recording")
def test_a_parent_ends_its_children_at_once() -> None:
    """Also while they start; a program that a child runs keeps its signals."""
    for _ in range(5):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        child.start()
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    with subprocess.Popen(["sleep", "1000"], preexec_fn=os.setsid) as program:
        program.terminate()
        assert program.wait(20) == -signal.SIGTERM
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


_SCRIPT = """
import os, sys
import torch.distributed as dist
print("printed by", dist.get_rank())
os.system("echo by a child")
sys.stderr.write(f"error of {dist.get_rank()}\\n")
dist.barrier()
if sys.argv[1:]:
    os.write(1, b"last words\\n")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.job
def test_each_rank_has_a_file_and_the_output_is_shown_as_before(tmp_path: Path) -> None:
    script, logs = tmp_path / "script.py", tmp_path / "new" / "logs"
    script.write_text(_SCRIPT)
    command = mpirun(2, *train("--backend", "gloo", "--log-dir", str(logs), str(script)))
    shown = completed(command, timeout=60)
    for rank in (0, 1):
        text = (logs / f"rank-{rank}.log").read_text()
        for line in (f"printed by {rank}\n", "by a child\n", f"error of {rank}\n"):
            assert line in text
        assert f"printed by {1 - rank}\n" not in text
        assert f"printed by {rank}\n" in shown.stdout
        assert f"error of {rank}\n" in shown.stderr
    assert "cpudist: completed after" in (logs / "rank-0.log").read_text()

    assert run([*command, "killed"], timeout=60).returncode != 0
    for rank in (0, 1):
        text = (logs / f"rank-{rank}.log").read_text()
        assert "last words\n" in text
        assert text.count(f"printed by {rank}\n") == 1, "the file of an earlier run is replaced"

    completed(command, timeout=60, env={"CPUDIST_RESTART_COUNT": "1"})
    assert (logs / "rank-1.log").read_text().count("printed by 1\n") == 2, "a restart appends"


def test_a_folder_that_cannot_be_written_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"cannot write /proc/logs/rank-0.log \(No such file"):
        log_output(Path("/proc/logs"), 0, again=False)
