"""A rank that makes the others wait is named once, with its cause; equal ranks never."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import mpirun, run, train
from observed import Observed

from cpudist.launchers import Placement
from cpudist.observability import stragglers as module
from cpudist.observability.record import RunRecord
from cpudist.observability.stragglers import Stragglers
from cpudist.supervision.rank_status import Pace
from cpudist.world import RankInfo

FIRST = Pace(10, 5.0, 0.0, 0, 0.0, 0.0, 1 << 30, 0, 0, 3e9, 8)


def _later(waited: float, **fields: Any) -> Pace:
    """A rank 60 steps and 12 seconds later, of which it has waited for this share."""
    return replace(FIRST, **{"steps": 70, "at": 17.0, "waited": 12 * waited, **fields})


def _said(*parts: dict[int, Pace], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is said while each rank does, part after part, what it did from FIRST to that pace."""
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lines.append)
    stragglers = _stragglers(len(parts[0]))
    paces = dict.fromkeys(parts[0], FIRST)
    for part in parts:
        begin = paces
        for twelfth in range(13):
            paces = {rank: _after(twelfth / 12, begin[rank], one) for rank, one in part.items()}
            stragglers.compare({rank: _counted_before(one) for rank, one in paces.items()})
    return lines


def _stragglers(size: int) -> Stragglers:
    job = Observed(members=[RankInfo("node", "h0", Placement(rank, size)) for rank in range(size)])
    job.changes.undo()
    return Stragglers(job, RunRecord(job))


def _after(share: float, begin: Pace, last: Pace) -> Pace:
    """Return the pace of a rank that has done such a share of what it did from FIRST to `last`."""
    fields = {
        name: getattr(begin, name) + share * (getattr(last, name) - getattr(FIRST, name))
        for name in ("at", "waited", "loading", "run_queue_delay", "faults")
    }
    return replace(last, steps=begin.steps + round(share * (last.steps - FIRST.steps)), **fields)


def _counted_before(pace: Pace) -> Pace:
    """Return a pace whose counters did not begin at 0."""
    names = ("waited", "loading", "run_queue_delay", "faults")
    return replace(pace, **{name: 1000 + getattr(pace, name) for name in names})


NEIGHBOUR = "another program computes there, or its CPU quota is used up"
WAITS = "rank 2 (h0) makes the others wait: in 50 steps they have waited for 15 % of the time, and it for 1 %"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"loading": 10.8}, "; its data loader takes 90 % of its time"),
        ({"threads": 4}, "; it computes with 4 threads, others with 8"),
        ({"clock": 1.8e9}, "; its clock is 1.8 GHz, that of others 3.0"),
        ({"run_queue_delay": 10.8}, f"; it waits for a core for 90 % of the time: {NEIGHBOUR}"),
        ({"faults": 240_000}, "; it has 20000 page faults a second"),
    ],
)
def test_a_slow_rank_is_named_once(fields: dict[str, Any], cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = {rank: _later(0.15) for rank in range(4)} | {2: _later(0.01, **fields)}
    assert _said(last, last, last, monkeypatch=monkeypatch) == [WAITS + cause]


@pytest.mark.parametrize("clock", [3e9, None])
def test_without_a_cause_a_rank_is_slow_three_times_as_long(
    clock: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = {rank: _later(0.15) for rank in range(4)} | {2: _later(0.01, clock=clock)}
    assert _said(last, last, monkeypatch=monkeypatch) == []
    (said,) = _said(last, last, last, last, monkeypatch=monkeypatch)
    assert said == WAITS.replace("50 steps", "150 steps")


def test_cores_that_all_ranks_lack_are_no_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    last = {rank: _later(0.15, run_queue_delay=1.0) for rank in range(4)} | {2: _later(0.01, run_queue_delay=1.2)}
    assert _said(last, monkeypatch=monkeypatch) == []


@given(st.lists(st.floats(0.3, 0.385), min_size=1, max_size=16))
def test_equal_ranks_are_not_named(shares: list[float]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        last = {rank: _later(share) for rank, share in enumerate(shares)}
        assert _said(last, last, monkeypatch=monkeypatch) == []


@given(st.integers(1, 6), st.lists(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6), max_size=30), st.data())
def test_any_ranks_and_steps_are_compared_without_an_error(
    size: int, readings: list[list[float]], data: st.DataObject
) -> None:
    """Also where ranks publish late, or not at all; `_failed` says whether `compare` has raised."""
    stragglers = _stragglers(size)
    for number, shares in enumerate(readings, 1):
        published = data.draw(st.sets(st.integers(0, size - 1)))
        steps, seconds = 10 + data.draw(st.integers(0, 40)) * number, 5.0 * number
        stragglers.are_due(steps)
        stragglers.compare(
            {rank: replace(FIRST, steps=steps, at=5.0 + seconds, waited=seconds * shares[rank]) for rank in published}
        )
    assert not stragglers._failed


def test_a_rank_that_grows_slow_is_named_within_50_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """15 % slower: the others wait for 13 % of the time."""
    equal, slow = {0: _later(0.02), 1: _later(0.02)}, {0: _later(0.15), 1: _later(0.02, loading=2.4)}
    fewer = {rank: replace(one, steps=60, at=15.0, waited=one.waited * 10 / 12) for rank, one in slow.items()}
    assert len(_said(equal, equal, fewer, monkeypatch=monkeypatch)) == 1


@pytest.mark.parametrize(("shares", "named"), [((0.07, 0.14), True), ((0.03, 0.3), False), ((0.07, 0.08), False)])
def test_both_halves_count(shares: tuple[float, float], named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"steps": 35, "at": 10.0}

    def half(share: float) -> dict[int, Pace]:
        return {0: replace(FIRST, **part, waited=5 * share), 1: replace(FIRST, **part, loading=1.0)}

    assert bool(_said(*map(half, shares), monkeypatch=monkeypatch)) is named


def test_ranks_that_are_slow_in_turn_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"steps": 35, "at": 10.0}
    turns = [{rank: replace(FIRST, **part, waited=1.5 * (rank == turn)) for rank in (0, 1)} for turn in (0, 1)]
    assert _said(*3 * turns, monkeypatch=monkeypatch) == []


def test_not_before_all_ranks_have_made_enough_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _said({0: _later(0.3), 1: _later(0.0, steps=49)}, monkeypatch=monkeypatch) == []
    assert _said({0: _later(0.3, at=14.9), 1: _later(0.0, at=14.9)}, monkeypatch=monkeypatch) == []
    stragglers = _stragglers(2)
    stragglers.compare({0: FIRST})
    assert stragglers.are_due(10)
    stragglers.compare({0: FIRST, 1: FIRST})
    assert not stragglers.are_due(11)
    assert stragglers.are_due(12)


_SCRIPT = """
import sys, time
import torch
import torch.distributed as dist
import cpudist

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000
    def __getitem__(self, index):
        if dist.get_rank() == 1:
            time.sleep(0.05)
        return torch.ones(8)

world = cpudist.init()
model = cpudist.wrap(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = time.monotonic()
for step, batch in enumerate(torch.utils.data.DataLoader(Data())):
    model(batch).sum().backward()
    optimizer.step()
    ends = torch.tensor([float(time.monotonic() - begin > 26 and step > 100)])
    dist.all_reduce(ends, dist.ReduceOp.MAX)
    if ends:
        break
cpudist.shutdown()
"""


@pytest.mark.job
def test_a_rank_with_a_slow_data_loader_is_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    result = run(mpirun(2, *train("--backend", "ccl", str(script))), timeout=100)
    assert result.returncode == 0, result.output
    (line,) = re.findall("^cpudist: .* makes the others wait: .*$", result.stderr, re.MULTILINE)
    assert re.match(r"cpudist: rank 1 \(\S+\) makes", line), line
    assert re.search(r"; its data loader takes \d+ % of its time$", line), line


_ONE_RANK = """
import time
import torch
import cpudist
from cpudist import job

world = cpudist.init()
model = cpudist.wrap(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
begin = time.monotonic()
steps = 0
while steps < 55 or time.monotonic() - begin < 13:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.2)
    steps += 1
time.sleep(3)
assert job.require().statuses()[0].pace.steps == steps, "the heartbeat publishes"
cpudist.shutdown()
"""


@pytest.mark.job
def test_one_rank_keeps_its_heartbeat(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_ONE_RANK)
    result = run(mpirun(1, *train("--backend", "ccl", "--stall", "8", str(script))), timeout=100)
    assert result.returncode == 0, result.output
    assert "warning" not in result.stderr, result.output
