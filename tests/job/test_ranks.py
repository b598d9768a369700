"""Ranks of one job start together, know each other, and end together."""

import atexit
import errno
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import mpirun, run
from ranks import begin, fork_ranks

import cpudist
from cpudist import waiting
from cpudist.backends.gloo import GlooBackend
from cpudist.job import current, rank_context, require
from cpudist.waiting import poll
from cpudist.world import World

pytestmark = pytest.mark.job


def test_a_rank_whose_stacks_cannot_be_served_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user may have taken the name of its socket."""

    def taken(*_: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(rank_context, "StackServer", taken)
    host = cpudist.init("gloo").hosts[0]
    cpudist.shutdown()
    said = f"cpudist: warning: cpudist stacks will not find rank 0 on {host}: Address already in use\n"
    assert said in capsys.readouterr().err


def test_jobs_know_all_ranks_and_leave_nothing_behind() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])  # here, since it imports torch._dynamo

    def script() -> None:
        before, hook = dict(os.environ), sys.excepthook
        for number in range(2):
            rank = str(int(os.environ["RANK"]))
            job = begin(timeout=20 + number)
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total == job.world.size == 2
            assert [member.placement.rank for member in job.members] == [0, 1]
            assert (job.timeout, job.restarts, job.ended_by_run_target) == (20 + number, 3, False)
            assert (job.run_ids, job.earlier_run_ids) == (["again"], {"again"})
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job._context.rendezvous.port)}
            ranks = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
            assert {"TORCH_WARM_POOL": "0", **address, **ranks}.items() <= os.environ.items()
            optimizer.step()

            def published() -> list[tuple[str, int, bool]]:
                statuses = [one for one in require().statuses().values() if one.pace]
                return [(one.line[:13], one.pace.steps, one.at_end) for one in statuses]

            assert poll(lambda: published() == [("test_ranks.py", 1, False)] * 2, 20)
            assert job._context.stacks.figures()["steps"] == 1
            dist.barrier()
            job.set_timeout(9)
            assert (job.timeout, job.store.timeout.total_seconds()) == (9, 9)
            files = len(os.listdir("/proc/self/fd"))
            if (child := os.fork()) == 0:
                assert sys.excepthook is sys.__excepthook__
                assert len(os.listdir("/proc/self/fd")) < files - 5, "connections are closed"
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            job.shutdown()
            assert current() is None
            assert (dict(os.environ), sys.excepthook) == (before, hook)

    ranks = fork_ranks(script, variables={"CPUDIST_RUN_ID": "again", "CPUDIST_RESTART_COUNT": "3"})
    assert ranks == [(0, ""), (0, "")], "\n".join(output for _, output in ranks)


def test_an_untested_torch_and_an_interactive_rank_are_reported_once() -> None:
    """Rank 1 runs in an interactive session, so no exception ends it, and no rank watches the others."""

    def script() -> None:
        torch.__version__ = torch.torch_version.TorchVersion("2.99.0")
        if os.environ["RANK"] == "1":
            sys.ps1 = ">>> "
        job = begin(stall=1)
        assert (job._context.interactive, job._context.watch) == (True, None)
        job.shutdown()

    (first, output), (second, other) = fork_ranks(script)
    assert (first, second) == (0, 0), output + other
    untested = r"cpudist: warning: cpudist was not tested with torch 2\.99\.0, only up to 2\.\d+\n"
    interactive = r"cpudist: warning: stall has no effect in a notebook or an interactive session\n"
    assert re.fullmatch(untested + interactive, output), output
    assert re.fullmatch(interactive, other), other


def test_a_rank_that_stops_while_the_backend_connects_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rank that waits, which then lets it go on."""
    start, stopped = GlooBackend.start, tmp_path / "stopped"

    def stop_and_start(backend: GlooBackend, world: World, store: dist.Store, timeout: float) -> None:
        if world.rank == 1:
            stopped.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGSTOP)
        start(backend, world, store, timeout)

    def say_and_continue(text: str) -> None:
        print(text)
        os.kill(int(stopped.read_text()), signal.SIGCONT)

    monkeypatch.setattr(GlooBackend, "start", stop_and_start)
    monkeypatch.setattr(waiting, "LONG_WAIT_SECONDS", 6.0)
    monkeypatch.setattr(waiting, "say", say_and_continue)
    (status, output), other = fork_ranks(lambda: begin(timeout=50).shutdown())
    assert (status, other) == (0, (0, "")), output
    assert re.match(r"gloo is connecting .* rank 1 \(\S+, last in \S+\): no answer", output), output


@pytest.mark.parametrize("late", [0, 1])
def test_a_job_that_is_not_shut_down_ends_when_all_ranks_have(late: int, tmp_path: Path) -> None:
    """And after the work in the background."""

    def script() -> None:
        atexit.register(lambda: None if (tmp_path / "late").exists() else os._exit(9))
        rank = begin(record=tmp_path / "record.json").world.rank
        require().finish_before_end(lambda: (tmp_path / f"saved {rank}").touch())
        if rank == late:
            time.sleep(1.5)
            (tmp_path / "late").touch()

    assert [status for status, _ in fork_ranks(script)] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"record.json", "late", "saved 0", "saved 1"}
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == "completed"


EXITS = """
import sys
import threading
import cpudist
import torch
cpudist.init("gloo", pin=False)
torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()
try:
    sys.exit(5)  # as argparse does
except SystemExit:
    torch.distributed.barrier()  # rank 0 has made its step, so there is a record
threading.Thread(target=sys.exit).start()
eval(sys.argv[1])(int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("way", "status", "exit"), [("sys.exit", 3, "failed"), ("exit", 3, "failed"), ("sys.exit", 0, "completed")]
)
def test_a_scripts_own_exit_status_is_that_of_the_job(tmp_path: Path, way: str, status: int, exit: str) -> None:
    script, runs = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(EXITS)
    result = run(mpirun(2, sys.executable, str(script), way, str(status)), 90, {"CPUDIST_RUNS": str(runs)})
    assert result.returncode == status, result.output
    assert ("failed: exit status 3; ending the job\n" in result.stderr) == (status > 0), result.output
    assert "Exception in thread" not in result.stderr, result.output
    (record,) = runs.glob("*/cpudist.json")
    assert json.loads(record.read_text())["exit"] == exit


def test_a_missing_rank_at_the_end_is_a_failure(tmp_path: Path) -> None:
    def script() -> None:
        job = begin(record=tmp_path / "record.json")
        job.set_timeout(1)
        if job.world.rank == 1:
            time.sleep(30)

    (first, output), _ = fork_ranks(script)
    assert first == 1
    assert re.search(r"after 1 s at the end still waiting for rank 1 .*test_ranks\.py:\d+", output), output
    assert "Traceback" not in output
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == "failed"
