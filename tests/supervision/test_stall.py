"""A job in which nothing goes on writes the stacks of its ranks and ends, also where a rank cannot run Python."""

import ctypes
import faulthandler
import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import begin, fork_ranks

from cpudist.console import say
from cpudist.patching.undo import Changes
from cpudist.supervision import stall
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.rank_status import beat_seconds
from cpudist.supervision.stall import Stall
from cpudist.supervision.step_counter import StepCounter
from cpudist.waiting import poll
from cpudist.world import World

BEATS = 3
SECONDS = BEATS * beat_seconds(2)

_ENDS = r"no step, collective or batch for \S+ s on any rank \(the limit is 2 s\)"


def _nothing() -> None: ...


class Ranks:
    """Two ranks of one counter that the test lets beat, without threads and timers."""

    def __init__(self, changes: Changes) -> None:
        self.collectives, self.armed = [0, 0], list[float]()
        self.store: Any = dist.HashStore()
        self.counter = counter = StepCounter(changes)
        self.stalls = []
        for rank in (0, 1):
            world, heartbeat = World(rank, 2, rank, 2, 0, 1, "test", hosts=("h0",)), Heartbeat(2, None, 1)
            progress = partial(self.collectives.__getitem__, rank)
            self.stalls.append(
                Stall(SECONDS, world, heartbeat, counter, progress, list, _nothing, (), list, _nothing, changes)
            )

    def beat(self, times: int = 1) -> list[bool]:
        """Whether each rank finds the job stalled, at the last of so many beats."""
        return [[one.has_stalled(self.store) for one in self.stalls] for _ in range(times)][-1]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(Heartbeat, "add", lambda self, beat: None)
    iterator, changes = torch.utils.data.dataloader._BaseDataLoaderIter, Changes()
    before = iterator.__next__
    job = Ranks(changes)
    monkeypatch.setattr(stall, "_arm", job.armed.append)
    yield job
    changes.undo()
    assert iterator.__next__ is before


def _step() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()


def test_nothing_counts_before_the_first_step(job: Ranks) -> None:
    assert job.beat(100) == [False, False]
    job.collectives[0] += 1
    assert job.beat(100) == [False, False], "data are still prepared"
    assert job.armed == []
    seen: list[Any] = []
    job.counter.after_step.append(seen.append)
    _step()
    assert [type(optimizer) for optimizer in seen] == [torch.optim.SGD]
    assert job.beat(BEATS + 2) == [True, True]
    assert len(job.armed) == 2 * (1 + BEATS + 2), "the timer of each rank starts anew at every beat"


@pytest.mark.parametrize("sign", ["step", "batch", "collective of another rank"])
def test_signs_of_life(job: Ranks, sign: str) -> None:
    _step()
    batches = iter(torch.utils.data.DataLoader(range(100)))  # type: ignore[arg-type]
    for _ in range(2 * BEATS):
        if sign == "step":
            _step()
        elif sign == "batch":
            next(batches)
        else:
            job.collectives[1] += 1
        assert job.beat() == [False, False]
    assert not any(job.beat(BEATS - 1))
    assert (job.counter.steps, job.counter.batches) == (1 + 6 * (sign == "step"), 6 * (sign == "batch"))
    assert (job.counter.loading > 0) == (sign == "batch")
    assert all(job.beat(2)), "both of them notice, within a beat"


def test_where_the_store_is_lost_a_rank_counts_its_own(job: Ranks) -> None:
    _step()
    job.beat()
    assert [job.stalls[0].has_stalled(None) for _ in range(BEATS)] == [False] * (BEATS - 1) + [True]


@pytest.mark.parametrize("where", ["progress", "show"])
def test_an_error_of_its_own_does_not_end_the_job(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise OSError("no progress known")

    progress, show, seconds = (fails, _nothing, 1e6) if where == "progress" else (_nothing, fails, 0.5)
    changes, heartbeat = Changes(), Heartbeat(1, None, 1)
    alone = World(0, 1, 0, 1, 0, 1, "test", hosts=("h0",))
    Stall(seconds, alone, heartbeat, StepCounter(changes), progress, list, show, (), list, _nothing, changes)
    _step()
    assert poll(lambda: not heartbeat._beats, 20)
    assert poll(lambda: not stall._armed, 20)
    assert "no progress known" in capsys.readouterr().err
    changes.undo()


@pytest.mark.job
def test_a_forked_child_ends_while_the_timer_runs() -> None:
    stall._arm(1e6)
    child = os.fork()
    if child == 0:
        faulthandler.cancel_dump_traceback_later()  # as the interpreter does when it exits
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not stall._armed


def _train() -> None:
    begin(stall=2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    dist.barrier()  # the first optimizer imports torch._dynamo, which can take one rank a second longer than the other
    for _ in range(3):
        optimizer.step()
        dist.all_reduce(torch.ones(1))


@pytest.mark.job
def test_a_rank_that_holds_pythons_lock_ends_with_the_others() -> None:
    """Rank 0 waits for it in a collective. No signal ends the wait for a mutex, as those of `cpudist stacks` would."""

    def script() -> None:
        _train()
        if dist.get_rank() == 1:
            mutex = ctypes.create_string_buffer(64)
            for _ in range(2):
                ctypes.PyDLL(None).pthread_mutex_lock(mutex)
        dist.barrier()

    (first, output), (second, stacks) = fork_ranks(script)
    assert (first, second) == (1, 1)
    assert len(re.findall(_ENDS, output)) == 1, output
    line = script.__code__.co_firstlineno
    assert re.search(rf'rank 0 on .*\n(?s:.*)test_stall\.py", line {line + 6}, in script', output), output
    theirs = rf'rank 1 \(process \d+\) runs no Python code now\n(?s:.*)test_stall\.py", line {line + 5} in script'
    assert re.search(theirs, output), output
    assert re.search(r"\ncpudist: rank 1 \(\S+\) does not answer: [^\n]*\n$", output), output
    assert stacks.startswith("Timeout (0:00:12)!"), "rank 1 ends by itself where no launcher kills it"


@pytest.mark.job
def test_a_job_that_goes_on_after_all_ends_as_it_has_said() -> None:
    """Rank 1 goes on as soon as rank 0 has reported the stall."""
    reader, writer = os.pipe()

    def report(text: str) -> None:
        say(text)
        os.write(writer, b"x")

    def script() -> None:
        stall.say = report  # type: ignore[attr-defined]
        _train()
        if dist.get_rank() == 1:
            ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
        dist.barrier()

    (first, output), (second, others) = fork_ranks(script)
    assert (first, second) == (1, 0), "rank 1 has finished"
    assert len(re.findall(_ENDS, output + others)) == 1, output
    os.close(reader)
    os.close(writer)
