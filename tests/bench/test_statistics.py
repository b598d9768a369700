"""Statistics of `cpudist bench` and their JSON."""

from functools import partial

import pytest

from cpudist.bench.between_hosts import ALONE, HostTimes
from cpudist.bench.collectives import Comparison
from cpudist.bench.timing import Timings, Turns, ratio, take_turns


def steady(*medians: float) -> Timings:
    """Rounds of three calls around each median."""
    return Timings(tuple((median * 0.9, median, median * 1.2) for median in medians))


def test_the_median_is_over_all_calls_the_spread_between_rounds_and_drift_cancels_in_ratios() -> None:
    timings = Timings(((1.0, 2.0, 9.0), (3.0, 4.0, 5.0)))
    assert (timings.median, timings.by_round, timings.spread) == (3.5, [2.0, 4.0], (2.0, 4.0))
    # The machine slows down fourfold from round to round; one candidate always takes twice as long.
    found = ratio(steady(2.0, 8.0, 32.0), steady(1.0, 4.0, 16.0))
    assert (found.median, found.spread) == (2.0, (2.0, 2.0))


def test_candidates_take_turns_and_warm_up_is_not_counted() -> None:
    log: list[tuple[str, int]] = []

    def candidate(name: str, seconds: float, calls: int) -> list[float]:
        log.append((name, calls))
        return [100.0, 100.0, seconds, seconds, seconds]

    turns = Turns(rounds=2, calls=3, warm_up=2)
    timings = take_turns({"a": partial(candidate, "a", 1.0), "b": partial(candidate, "b", 2.0)}, turns)
    assert log == [("a", 5), ("b", 5)] * 2
    assert timings["a"] == Timings(((1.0,) * 3, (1.0,) * 3))
    assert timings["b"].median == 2.0


def test_a_comparison_has_gloo_over_the_job_and_the_job_over_the_others() -> None:
    times = {"ccl": steady(2e-5), "gloo": steady(1e-4), "memory copy": steady(1e-5)}
    ratios = Comparison("allreduce", 1 << 10, times).as_dict()["ratios"]
    assert ratios["gloo/ccl"]["median"] == pytest.approx(5)
    assert ratios["ccl/memory copy"]["median"] == pytest.approx(2)


def test_candidates_across_hosts_are_compared_with_no_communication() -> None:
    alone, hooked, step = (Timings(((one, one), (one, one))) for one in (1.0, 2.0, 1.25))
    times = HostTimes({"float32": {ALONE: alone, "powersgd": hooked, "bf16": step}})
    (entry,) = times.as_list()
    assert entry["seconds"]["powersgd"]["calls_per_round"] == 2
    assert entry["ratios"]["powersgd/no communication"]["round_medians"] == [2.0, 2.0]
