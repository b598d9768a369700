"""How ranks of a job without a launcher end each other, and what they say of it."""

import gc
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from ranks import begin, fork_ranks

import cpudist
from cpudist.errors import UserError
from cpudist.job import Job, fail
from cpudist.observability import rank_answers
from cpudist.observability.stack_server import StackAddress
from cpudist.processes.attempt import JOB_ID
from cpudist.processes.ending import end_now
from cpudist.processes.lost_ranks import told
from cpudist.processes.procfs import read
from cpudist.store import Connection
from cpudist.supervision import watch
from cpudist.waiting import poll

pytestmark = pytest.mark.job

HERE = rf"on {re.escape(socket.gethostname())} .*; it was last in test_ends\.py:\d+"


def ends(script: Callable[[], object], size: int = 2) -> tuple[list[int | None], str]:
    """Return the ranks' exit statuses, and what all of them have written."""
    ranks = fork_ranks(script, size)
    return [status for status, _ in ranks], "".join(output for _, output in ranks)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ValueError("why"), 1, rf"cpudist: rank 1 on {socket.gethostname()} failed: .*; ending the job\n"),
        (UserError("cause; remedy"), 2, "cpudist: cause; remedy\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["error", "user error", "interrupt"],
)
@pytest.mark.parametrize("way", ["raised", "failed", "before excepthook"])
def test_a_failure_of_one_rank_ends_all(error: BaseException, status: int, said: str, way: str, tmp_path: Path) -> None:
    def script() -> None:
        begin(record=tmp_path / "record.json")
        if dist.get_rank() == 0:
            time.sleep(30)
        elif way == "raised":
            raise error
        elif way == "failed":
            fail(error)
        else:
            sys.last_value = error  # as IPython and debuggers leave it

    (other, nothing), (failed, output) = fork_ranks(script)
    assert (failed, other, nothing) == (status, status, "")
    trace = r"(?s:.*)ValueError: why\n" if status == 1 and way != "before excepthook" else ""
    assert re.fullmatch(trace + said, output), output
    exit = "interrupted" if status == 130 else "failed"
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == exit


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_a_failure_before_the_job_is_reported_by_rank_0_or_later(rank: int | None) -> None:
    where = f"rank 1 on {socket.gethostname()}: " if rank else ""
    assert fork_ranks(lambda: fail(UserError("cause"), rank=rank), 1) == [(2, f"cpudist: {where}cause\n")]


def test_a_failure_of_a_process_without_a_launcher_is_recorded(tmp_path: Path) -> None:
    def script() -> None:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
        begin(record=tmp_path / "record.json")
        fail(ValueError("why"))

    ((status, output),) = fork_ranks(script, 1)
    assert (status, "this process failed: ValueError: why;" in output) == (1, True), output
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == "failed"


def test_the_same_exception_on_all_ranks_is_shown_once_and_data_workers_end(tmp_path: Path) -> None:
    def script() -> None:
        worker = get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
        worker.start()
        (tmp_path / str(worker.pid)).touch()
        begin()
        raise ValueError("everywhere")

    statuses, output = ends(script, 3)
    assert (statuses, output.count("\nValueError: everywhere\n")) == ([1, 1, 1], 1)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 3
    assert poll(lambda: not any(map(read, workers)), 10)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_others_and_is_named(killed: int, tmp_path: Path) -> None:
    """Also where another rank has noticed a broken connection first, as gloo does in a call."""

    def script() -> None:
        job = begin()
        if job.world.rank == killed:
            os.chdir(tmp_path)
            tmp_path.rmdir()
        assert poll(lambda: sum("test_ends" in one.line for one in job.statuses().values()) == 3, 20)
        if job.world.rank == 2:
            raise RuntimeError("Connection closed by peer")
        time.sleep(0.5 if job.world.rank == killed else 30)
        os.kill(os.getpid(), signal.SIGKILL)

    statuses, output = ends(script, 3)
    assert statuses == [-9 if rank == killed else 1 for rank in range(3)], output
    assert re.fullmatch(rf"cpudist: rank {killed} {HERE}; ending the job\n", output), output


def test_a_rank_that_left_its_groups_is_named_instead_of_the_one_whose_call_fails() -> None:
    def script() -> None:
        rank = begin().world.rank
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group() if rank == 1 else dist.all_reduce(torch.ones(1))

    (status, output), _ = fork_ranks(script)
    said = r"\ncpudist: rank 1 \(\S+\) makes no calls any more; it was at the end of its script.*; ending the job\n$"
    assert (status, bool(re.search(said, output))) == (1, True), output


def test_a_lost_rank_is_named_though_the_one_that_would_report_it_is_killed_first() -> None:
    """As a launcher kills it, which ends all ranks of a host at once: the store has the last word."""

    def script() -> None:
        job = begin()
        if job.world.rank == 0:
            watch.published = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # what it asks for its report
            time.sleep(30)
        assert poll(lambda: sum("test_ends" in one.line for one in job.statuses().values()) == 2, 20)
        os.kill(os.getpid(), signal.SIGKILL)

    (first, output), (second, _) = fork_ranks(script)
    assert (first, second) == (-9, -9)
    assert re.fullmatch(rf"cpudist: rank 1 {HERE}; the job is over\n", output), output


def test_a_rank_at_its_end_fails_with_the_store() -> None:
    """As where rank 0's host loses its power."""

    def script() -> None:
        job = begin()
        if job.world.rank == 0:
            assert poll(lambda: 1 in (statuses := job.statuses()) and statuses[1].at_end, 20)
            rank, (store,) = os.getpid(), psutil.Process().children()
            os.system(f"kill -STOP {rank}; kill -9 {store.pid} {rank}")  # this rank must not notice the store's end

    assert ends(script)[0] == [-9, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_reports_why_and_ends_at_once_is_not_called_lost(rank: int, tmp_path: Path) -> None:
    """As where its group cannot be made."""

    def script() -> None:
        if begin(record=tmp_path / "record.json").world.rank == rank:
            end_now(1, "the reason")
        time.sleep(30)

    assert ends(script) == ([1, 1], "cpudist: the reason\n")
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == "failed"


def test_a_collective_that_a_rank_never_calls() -> None:
    """Is reported after a third of the timeout, and at its end; `cpudist launch` is told, too."""
    launched = uuid.uuid4().hex

    def script() -> None:
        job = begin()
        dist.all_reduce(torch.ones(1))  # connects them
        job.set_timeout(6)
        time.sleep(30 * (job.world.rank == 1))
        try:
            dist.all_reduce(torch.ones(1)) if job.world.rank == 0 else time.sleep(30)
        finally:
            time.sleep(1)  # A heartbeat publishes that gloo's collective has completed.

    (first, output), *others = fork_ranks(script, 3, variables={JOB_ID: launched})
    assert [first, *others, told(launched)] == [1, (1, ""), (1, ""), [1, 2]]
    line = r"test_ends\.py:\d+"
    causes = [rf"rank {n} \(\S+\) never reached all_reduce #\d+ \(4 B, {line}\); it was last in {line}" for n in (1, 2)]
    for cause in causes:
        assert len(re.findall(rf"^cpudist: waiting for [2-5] s of 6: {cause}$", output, re.MULTILINE)) == 1, output
    assert re.search(rf"\ncpudist: {causes[1]}\ncpudist: {causes[0]}; ending the job\n$", output), output


def test_a_heartbeat_waits_for_nothing_that_the_script_holds() -> None:
    """Rank 0 is in a backward pass of DDP, which holds a lock; rank 1 holds all of Python's, and its output blocks."""

    def fails(_: object) -> None:
        raise ValueError("a line to say")

    def hold_all(job: Job) -> None:
        sys.stderr = SimpleNamespace(write=lambda _: time.sleep(100), flush=lambda: None)  # type: ignore[assignment]
        job.heartbeat.add(fails)
        of_python, address = {type(threading.Lock()), type(threading.RLock())}, job._context.rendezvous.address
        found = [one for one in gc.get_referents(*gc.get_objects()) if type(one) in of_python]
        with closing(Connection(address, 5)) as store:
            held = [one for one in found if one is not job._context.watch._publishing and one.acquire(blocking=False)]
            begin = time.monotonic()
            keys = ["status/0", "status/1"]
            assert poll(lambda: time.monotonic() > begin + 6 and max(store.ages(keys)) < 4, 30), store.ages(keys)
            ranks = [one for line in rank_answers._sockets() if (one := StackAddress.of(line))]
            asked = [rank_answers._ask(one, None)[1] for one in ranks if one.job == job._context.stacks.job]
            shown = [rank_answers._parts(answer)[1]["steps"] for answer in asked]
            assert shown == [1, 1], "as `cpudist top` shows them"
        assert len(held) > 50
        for lock in held:
            lock.release()

    def script() -> None:
        job = begin(timeout=60, stall=60)
        model = cpudist.wrap(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            if step == job.world.rank == 1:
                hold_all(job)
            model(torch.ones(8)).sum().backward()
            optimizer.step()
        job.shutdown()

    ranks = fork_ranks(script)
    assert [status for status, _ in ranks] == [0, 0], ranks
