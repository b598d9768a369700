"""A rank that makes the others wait is named once, the sooner the slower it is, with its cause; equal ranks never."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observed import Observed

from cpudist.balance.division import divide
from cpudist.launchers import Placement
from cpudist.observability.record import RunRecord
from cpudist.observability.stragglers import Stragglers
from cpudist.supervision.rank_status import Pace, RankStatus
from cpudist.world import RankInfo

FIRST = Pace(2, 5.0, 0.0, 0, 0.0, 0.0, 1 << 30, 0.0, 0, 3e9, 8, step_at=5.0, step_waited=0.0)
LOADS = {"loading": 0.2}  # a cause: a fifth of the time


class Job:
    """Ranks whose paces a test advances; rank 0 compares them about once in `beat` seconds."""

    def __init__(self, size: int, beat: float = 0.25) -> None:
        job = Observed(members=[RankInfo("node", "h0", Placement(rank, size)) for rank in range(size)])
        job.changes.undo()
        self.record = RunRecord(job)
        self.stragglers = Stragglers(job, self.record)
        self.paces = dict.fromkeys(range(size), FIRST)
        self._compared, self._beat = 0.0, beat
        self.compare()

    def compare(self) -> None:
        line = "train.py:9"
        self.stragglers.compare({rank: RankStatus(rank, "h0", line, pace=pace) for rank, pace in self.paces.items()})

    def step(self, computing: Sequence[float], fields: Sequence[dict[str, float]] = ()) -> None:
        """Make a step in which each rank computes for so many seconds; `fields` are counters per second."""
        length = max(computing)
        for rank, seconds in enumerate(computing):
            pace = self.paces[rank]
            more: dict[str, Any] = {
                name: getattr(pace, name) + share * length for name, share in (fields[rank] if fields else {}).items()
            }
            at, waited = pace.at + length, (pace.step_waited or 0.0) + length - seconds
            self.paces[rank] = replace(pace, steps=pace.steps + 1, at=at, step_at=at, step_waited=waited, **more)
        if self.paces[0].at >= self._compared + self._beat:
            self._compared = self.paces[0].at
            self.compare()

    def steps_until_named(self, computing: Callable[[], Sequence[float]], fields: Any = (), most: int = 400) -> int:
        """Return the number of steps after which a rank is named; `most` if none is."""
        for number in range(most):
            if self.record.stragglers:
                return number
            self.step(computing(), fields)
        return most


@pytest.mark.parametrize(
    ("seconds", "slower", "fields", "fewest", "most"),
    [
        (0.4, 6.0, {}, 3, 10),
        (0.4, 1.5, {}, 5, 20),
        (0.08, 1.5, {}, 12, 20),
        (0.4, 1.15, {}, 80, 150),
        (0.4, 1.15, LOADS, 30, 50),
        (0.4, 1.05, LOADS, 400, 400),
    ],
)
@pytest.mark.parametrize("size", [2, 5])
def test_the_slower_a_rank_the_fewer_steps_it_takes(
    seconds: float, slower: float, fields: dict[str, float], fewest: int, most: int, size: int
) -> None:
    noise = random.Random(7)

    def computing() -> list[float]:
        return [seconds * noise.gauss(slower if rank == 1 else 1, 0.025) for rank in range(size)]

    job = Job(size)
    assert fewest <= job.steps_until_named(computing, [fields if rank == 1 else {} for rank in range(size)]) <= most
    assert set(job.record.stragglers) <= {1}


@pytest.mark.parametrize("fields", [{}, LOADS])
def test_a_slow_rank_that_balance_relieves_is_told_by_its_shares_alone(
    fields: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it becomes the fast one before shares may change again."""
    job = Job(2)
    balance, job.paces = job.stragglers._job.balance, dict.fromkeys(range(2), replace(FIRST, available=1 << 40))
    balance.follows_speeds, balance.per_step = True, 16
    for speeds in [(30, 10)] * 60 + [(10, 30)] * 140:
        shares = divide(16, balance.chosen)
        took = [share / speed for share, speed in zip(shares, speeds, strict=True)]
        job.step(took, [{"samples": share / max(took), **(fields if speeds[0] > 10 else {})} for share in shares])
    assert re.findall(r"shares \d+ and \d+", capsys.readouterr().err) == ["shares 12 and 4", "shares 4 and 12"]
    assert job.record.stragglers == {}


@settings(max_examples=30)
@given(
    st.integers(0, 1 << 32),
    st.integers(2, 6),
    st.floats(0.02, 3.0),
    st.sampled_from([0.01, 0.03, 0.06]),
    st.sampled_from([0.25, 1.0]),
)
def test_an_hour_of_equal_ranks_is_quiet(seed: int, size: int, step: float, spread: float, beat: float) -> None:
    """Each step of each rank takes a random time longer; now and then one rank saves a checkpoint."""
    noise, job = random.Random(seed), Job(size, beat)
    steps = min(int(3600 / step), 1500)

    def computing() -> list[float]:
        saves = 10 * step * (noise.random() < 0.002)
        return [step * (1 + noise.expovariate(1 / spread)) + saves * (rank == 0) for rank in range(size)]

    assert job.steps_until_named(computing, most=steps) == steps
    assert not job.stragglers._failed


def test_ranks_that_are_slow_in_turn_are_not_named() -> None:
    job, turns = Job(2), [[0.52, 0.4]] * 3 + [[0.4, 0.52]] * 3
    steps = iter(turns * 100)
    assert job.steps_until_named(lambda: next(steps)) == 400


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"loading": 0.2}, "its data loader takes 20 % of its time"),
        ({"threads": 4}, "it computes with 4 threads, others with 8"),
        ({"clock": 1.8e9}, "its clock is 1.8 GHz, that of others 3.0"),
        ({"run_queue_delay": 0.1}, "it waits for a core for 10 % of the time"),
        ({"faults": 20_000}, "it has 20000 page faults a second"),
        ({}, "it is mostly in train.py:9"),
        ({"clock": None}, "it is mostly in train.py:9"),
    ],
)
def test_each_cause_is_named_once(fields: dict[str, Any], cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(4)
    fixed = {name: value for name, value in fields.items() if name in ("threads", "clock")}
    job.paces[2] = replace(FIRST, **fixed)
    rates = {name: value for name, value in fields.items() if name not in fixed}
    for _ in range(300):
        job.step([0.4, 0.4, 0.6, 0.4], [rates if rank == 2 else {} for rank in range(4)])
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"cpudist: rank 2 \(h0\) makes .* waited for 33 % of the time, and it for 0 %; ", line), line
    assert f"; {cause}" in line
    assert job.record.stragglers == {2: "train.py:9"}
    assert job.record.compared == {"waits": pytest.approx(0.25), "slowest_rank": 2, "delays": pytest.approx(1 / 3)}


def test_the_last_line_names_the_reported_rank_that_has_delayed_most() -> None:
    record = Job(3).record
    record.waiting = [{"rank": rank, "host": "h0", "delays": delay} for rank, delay in enumerate((0.9, 0.2, 0.3))]
    record.stragglers = {1: "a.py:1", 2: "b.py:2"}
    assert record._slowest() == "; rank 2 on h0 made the others wait 30 % of the time, mostly in b.py:2"
    record.waiting = [{"rank": 1, "host": "h0", "delays": 0.04}]
    assert record._slowest() == ""


def test_a_rank_that_lacks_cores_is_named_after_40_steps_and_10_seconds() -> None:
    """Other programs may end soon."""
    lacking = [{}, {"run_queue_delay": 0.6}]
    assert Job(2).steps_until_named(lambda: [0.4, 1.2], lacking) in (40, 41)
    assert Job(2).steps_until_named(lambda: [0.04, 0.12], lacking) in range(83, 93)


def test_cores_that_all_ranks_lack_are_no_cause() -> None:
    job, lacking = Job(4), [{"run_queue_delay": 0.08}] * 4
    lacking[2] = {"run_queue_delay": 0.1}
    assert job.steps_until_named(lambda: [0.4, 0.4, 0.46, 0.4], lacking) > 80


@given(st.integers(1, 6), st.lists(st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6), max_size=30), st.data())
def test_any_ranks_and_steps_can_be_compared(size: int, readings: list[list[float]], data: st.DataObject) -> None:
    """Also where ranks publish late, or not at all; `_failed` says whether `compare` has raised."""
    job = Job(size)
    for number, shares in enumerate(readings, 1):
        steps, seconds = 10 + data.draw(st.integers(0, 40)) * number, 5.0 * number
        job.stragglers.are_due(steps)
        for rank in data.draw(st.sets(st.integers(0, size - 1))):
            at, waited = 5.0 + seconds, seconds * shares[rank]
            job.paces[rank] = replace(FIRST, steps=steps, at=at, step_at=at, step_waited=waited)
        job.compare()
    assert not job.stragglers._failed


def test_rank_0_reads_after_its_second_step_and_then_after_each() -> None:
    job = Observed(members=[RankInfo("node", "h0", Placement(rank, 2)) for rank in range(2)])
    stragglers = Stragglers(job, RunRecord(job))
    assert [stragglers.are_due(steps) for steps in (1, 2)] == [False, True]
    stragglers.compare({0: RankStatus(0, "h0", pace=FIRST)})
    assert stragglers.are_due(2), "rank 1 has not published"
    stragglers.compare({rank: RankStatus(rank, "h0", pace=FIRST) for rank in range(2)})
    assert [stragglers.are_due(steps) for steps in (2, 3)] == [False, True]
    job.changes.undo()
