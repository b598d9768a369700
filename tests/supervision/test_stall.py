"""A job in which nothing goes on writes the stacks of its ranks and ends, also where a rank cannot run Python."""

from __future__ import annotations

import faulthandler
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import mpirun, run, train

from cpudist.changes import Changes
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

_STEPS = """
import ctypes, os, sys, torch
import torch.distributed as dist
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
dist.barrier()  # the first optimizer imports torch._dynamo, which can take one rank a second longer than the other
for step in range(3):
    optimizer.step()
    dist.all_reduce(torch.ones(1))
"""

# Rank 1 holds Python's lock in C; rank 0 waits for it in a collective. No signal ends the wait for a mutex: other tests
# run `cpudist stacks`, which sends one to a rank that does not answer.
_LOCKED = f"""{_STEPS}
if dist.get_rank() == 1:
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
dist.barrier()
"""

# Rank 1 goes on as soon as rank 0 has said that the job ends.
_LATE = f"""{_STEPS}
class Stderr:
    def __init__(self, stream): self._stream = stream
    def __getattr__(self, name): return getattr(self._stream, name)
    def write(self, text):
        self._stream.write(text)
        if "the job ends" in text: open(sys.argv[1], "w").close()
if dist.get_rank() == 1:
    ctypes.PyDLL(None).open(os.fsencode(sys.argv[1]), os.O_RDONLY)
else:
    sys.stderr = Stderr(sys.stderr)
dist.barrier()
"""


class Signs:
    """The part of the job's store that counts signs of life."""

    def __init__(self) -> None:
        self.signs = 0

    def add(self, key: str, amount: int) -> int:
        self.signs += amount
        return self.signs


class Ranks:
    """Ranks of one counter that the test lets beat, without threads and timers."""

    def __init__(self, changes: Changes, size: int) -> None:
        self.collectives = [0] * size
        self.store: Any = Signs()
        self.stalls = []
        counter = StepCounter(changes)
        for rank in range(size):
            world = World(rank, size, rank, size, 0, 1, "test", hosts=("h0",))
            progress: Callable[[], object] = lambda rank=rank: self.collectives[rank]  # noqa: E731
            nothing: Callable[[], None] = lambda: None  # noqa: E731
            heartbeat = Heartbeat(size, None, 1)
            self.stalls.append(Stall(SECONDS, world, heartbeat, counter, progress, list, nothing, nothing, changes))

    def beat(self, times: int = 1) -> list[bool]:
        """Whether each rank finds the job stalled, at the last of so many beats."""
        return [[one.has_stalled(self.store) for one in self.stalls] for _ in range(times)][-1]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Ranks]]:
    monkeypatch.setattr(Heartbeat, "add", lambda self, beat: None)
    monkeypatch.setattr(stall, "_arm", lambda seconds: None)
    changes = Changes()
    yield lambda size: Ranks(changes, size)
    changes.undo()


def _step() -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()


def test_nothing_counts_before_the_first_step(ranks: Callable[[int], Ranks]) -> None:
    job = ranks(2)
    assert job.beat(100) == [False, False]
    job.collectives[0] += 1
    assert job.beat(100) == [False, False], "data are still prepared"
    _step()
    assert job.beat(BEATS + 2) == [True, True]


@pytest.mark.parametrize("sign", ["step", "batch", "collective of another rank"])
def test_signs_of_life(ranks: Callable[[int], Ranks], sign: str) -> None:
    job = ranks(2)
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
    assert all(job.beat(2)), "both of them notice, within a beat"


def test_where_the_store_is_lost_a_rank_counts_its_own(ranks: Callable[[int], Ranks]) -> None:
    job = ranks(2)
    _step()
    job.beat()
    assert [job.stalls[0].has_stalled(None) for _ in range(BEATS)] == [False] * (BEATS - 1) + [True]


@pytest.mark.parametrize("where", ["progress", "show"])
def test_an_error_of_its_own_does_not_end_the_job(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise OSError("no progress known")

    def works() -> None: ...

    progress, show, seconds = (fails, works, 1e6) if where == "progress" else (works, fails, 0.5)
    changes = Changes()
    alone = World(0, 1, 0, 1, 0, 1, "test", hosts=("h0",))
    heartbeat = Heartbeat(1, None, 1)
    Stall(seconds, alone, heartbeat, StepCounter(changes), progress, list, show, works, changes)
    _step()
    assert poll(lambda: not heartbeat._beats, 20)
    assert poll(lambda: not stall._armed, 20)
    assert "no progress known" in capsys.readouterr().err
    changes.undo()


def test_torch_is_as_before_afterwards() -> None:
    before = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    changes = Changes()
    alone = World(0, 1, 0, 1, 0, 1, "test", hosts=("h0",))
    counter = StepCounter(changes)
    Stall(1e6, alone, Heartbeat(1, None, 1), counter, lambda: 0, list, lambda: None, lambda: None, changes)
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is not before
    changes.undo()
    assert torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is before


@pytest.mark.job
def test_a_forked_child_ends_while_the_timer_runs() -> None:
    stall._arm(1e6)
    child = os.fork()
    if child == 0:
        faulthandler.cancel_dump_traceback_later()  # as the interpreter does when it exits
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not stall._armed


@pytest.mark.job
def test_a_rank_that_holds_pythons_lock_ends_with_the_others(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(_LOCKED)
    result = run(mpirun(2, *train("--backend", "gloo", "--stall", "2", str(path))), timeout=60)
    assert result.returncode not in (0, 2), result.output
    assert len(re.findall(_ENDS, result.stderr)) == 1
    assert re.search(r"rank 0 on .*\n(?s:.*)script\.py\", line 14, in <module>", result.stderr), result.output
    assert "Timeout (0:00:05)!" in result.stderr, "rank 1 ends by itself, after its stacks"
    assert re.search(r"script\.py\", line 13 in <module>", result.stderr), result.output


@pytest.mark.job
def test_a_job_that_goes_on_after_all_ends_as_it_has_said(tmp_path: Path) -> None:
    path, pipe = tmp_path / "script.py", tmp_path / "pipe"
    path.write_text(_LATE)
    os.mkfifo(pipe)
    result = run(mpirun(2, *train("--backend", "gloo", "--stall", "2", str(path), str(pipe))), timeout=60)
    assert len(re.findall(_ENDS, result.stderr)) == 1
    assert result.returncode not in (0, 2), result.output
