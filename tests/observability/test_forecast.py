"""The model of `cpudist forecast`."""

from __future__ import annotations

from typing import Any

import pytest

from cpudist.errors import UserError
from cpudist.observability.forecast import BYTE, SCHEMES, VALUE, advice, check, forecast

GBIT = 1.25e8  # bytes a second
# Eight groups, of which each is complete 0.1 s after the one before: 80 MB take 0.64 s on two hosts at 1 Gbit/s.
GROUPS = [[(7 - number) / 10, 10_000_000] for number in range(8)]
THREADS = [{"omp_threads": 1000}]  # which sums do not delay


def record(**fields: Any) -> dict[str, Any]:
    common = {"hosts": ["n0"], "world_size": 1, "backend": "ccl", "gradients": {"compress": "none"}, "pinning": THREADS}
    speed = {"step_seconds": {"median": 1.2, "p95": 1.2}, "samples_per_second": 10.0, "memory": 2 << 30}
    times = {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": GROUPS}}
    return {**common, **speed, **times, **fields}


def test_one_host_is_what_was_measured() -> None:
    found = forecast(record(), 1, "none", GBIT)
    assert (found.step, found.waiting, found.efficiency) == (1.2, 0.0, 1.0)
    assert found.samples_per_second == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("bandwidth", "waiting"),
    [(GBIT, 10e6 / GBIT), (GBIT / 10, 80e6 / GBIT * 10 - 0.7)],
    ids=["only the last group is not hidden", "no more than the backward pass is hidden"],
)
def test_a_step_waits_for_what_the_backward_pass_does_not_hide(bandwidth: float, waiting: float) -> None:
    found = forecast(record(), 2, "none", bandwidth)
    assert found.waiting == pytest.approx(waiting, rel=0.01)
    assert found.samples_per_second == pytest.approx(20 * 1.2 / found.step)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("hosts", [2, 4, 8, 64])
def test_more_bandwidth_is_never_slower_and_more_hosts_are_never_faster(scheme: str, hosts: int) -> None:
    steps = [forecast(record(), hosts, scheme, GBIT * 2**power).step for power in range(-6, 7)]
    assert steps == sorted(steps, reverse=True)
    assert forecast(record(), 2 * hosts, scheme, GBIT).step >= forecast(record(), hosts, scheme, GBIT).step


def test_bytes_scale_with_the_scheme_and_the_hosts() -> None:
    slow = GBIT / 1000  # nothing else matters

    def waiting(hosts: int, scheme: str, of: dict[str, Any]) -> float:
        return forecast(of, hosts, scheme, slow).waiting

    plain = waiting(2, "none", record())
    assert waiting(2, "bf16", record()) == pytest.approx(plain / 2, rel=0.01)
    assert waiting(2, "int8", record()) == pytest.approx(plain / 3.9, rel=0.01)
    assert waiting(4, "none", record()) == pytest.approx(plain * 1.5, rel=0.01)
    half = {"waiting": 0.0, "values": 40_000_000, "groups": GROUPS}  # of bfloat16
    assert waiting(2, "bf16", record(gradient_times=half)) == pytest.approx(plain, rel=0.01)


def test_gloo_sends_the_gradients_of_each_rank() -> None:
    two_ranks = {"world_size": 4, "hosts": ["n0", "n1"]}
    gloo, ccl = (forecast(record(backend=name, **two_ranks), 2, "none", GBIT / 1000) for name in ("gloo", "ccl"))
    assert gloo.waiting / ccl.waiting == pytest.approx(1.5, rel=0.01)


def test_sums_take_the_time_of_the_threads_that_compute() -> None:
    alone = record(pinning=[{"omp_threads": 1}])
    for hosts, scheme, each in ((2, "none", 4), (4, "none", 6), (2, "bf16", 2)):
        found = forecast(alone, hosts, scheme, 1000 * GBIT)
        assert found.step - 1.2 == pytest.approx(20e6 * (VALUE[scheme] + BYTE * each), rel=0.1)
    slow = [forecast(of, 2, "none", GBIT / 100).step for of in (alone, record())]
    assert slow[0] == pytest.approx(slow[1], rel=0.01)  # they are done while it waits


@pytest.mark.parametrize(
    ("fields", "hosts", "scheme", "found"),
    [
        ({}, 4, "bf16", [1.187175, 0.284675, 20.216059, 0.739150, 0]),
        ({}, 2, "int8", [0.987525, 0.090396, 12.151595, 0.888585, 80e6]),
        ({"hosts": ["n0"], "world_size": 2}, 4, "bf16", [1.637240, 0.412240, 29.317626, 0.732941, 0]),
        ({"backend": "gloo"}, 2, "int8", [1.005790, 0.126406, 11.930915, 0.830193, 80e6]),
        ({"gradients": {"compress": "int8"}}, 4, "bf16", [1.190047, 0.284675, 20.167274, 0.739779, -80e6]),
    ],
)
def test_a_run_of_two_ranks_a_host_with_two_groups(
    fields: dict[str, Any], hosts: int, scheme: str, found: list[float]
) -> None:
    """The first by hand: 60 MB are sent in 0.48 s, and work takes 0.025 s; 0.8775 s of 1.2 s were computing."""
    groups = [(0.2, 30_000_000), (0.0, 50_000_000)]
    run = record(
        hosts=["n0", "n1"], world_size=4, pinning=[{"omp_threads": 2}], step_seconds={"median": 1.2, "p95": 1.4}
    )
    run |= {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": groups}, **fields}
    step, waiting, rate, efficiency, memory = forecast(run, hosts, scheme, GBIT)[2:7]
    assert [step, waiting, rate, efficiency, memory - (2 << 30)] == pytest.approx(found, rel=1e-5)


def test_a_step_waits_for_the_slowest_host() -> None:
    def step(hosts: int, p95: float, names: tuple[str, ...] = ("n0",)) -> float:
        fields = {"hosts": names, "world_size": len(names), "step_seconds": {"median": 1.2, "p95": p95}}
        return forecast(record(**fields), hosts, "none", GBIT).step

    # With a standard deviation of 0.1 s, the longest of 2, 4 and 8 steps is on average 0.056, 0.103 and 0.142 s more.
    later = [step(hosts, 1.2 + 0.1645) - step(hosts, 1.2) for hosts in (1, 2, 4, 8)]
    assert later == pytest.approx([0.0, 0.056, 0.103, 0.142], abs=0.003)
    assert step(2, 1.2, ("n0", "n1")) == step(2, 1.4, ("n0", "n1"))  # these have waited for the slower one


def test_a_run_on_two_hosts_computes_while_it_does_not_wait() -> None:
    run = record(hosts=["n0", "n1"], world_size=2, gradients={"compress": "bf16"})
    assert forecast(run, 1, "none", GBIT).step == pytest.approx(0.9, rel=0.001)


def test_int8_keeps_its_errors_in_memory() -> None:
    plain, int8 = record(), record(gradients={"compress": "int8"})
    assert forecast(plain, 2, "int8", GBIT).memory - forecast(plain, 2, "none", GBIT).memory == 80_000_000
    assert forecast(int8, 2, "int8", GBIT).memory == int8["memory"]


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"step_seconds": {"median": None}}, "no times of gradients"),
        ({"gradient_times": None}, "no times of gradients"),
        ({"gradients": {"compress": "powersgd:8"}}, "--compress powersgd"),
    ],
)
def test_a_record_without_the_figures_is_refused(fields: dict[str, Any], missing: str) -> None:
    with pytest.raises(UserError, match=f"^out .*{missing}"):
        check(record(**fields), "out")
    check(record(gradients={"compress": "none: all ranks are on one host"}), "out")


@pytest.mark.parametrize(
    ("bandwidth", "parts"),
    [
        (100 * GBIT, ["computing is the limit", "no --compress pays", "from 4 to 8 each one adds 0.98 of a host."]),
        (GBIT / 10, ["the network is the limit", "--compress int8 pays", "from 1 to 2", "which does not pay."]),
    ],
)
def test_the_sentence_says_what_limits_and_what_pays(bandwidth: float, parts: list[str]) -> None:
    pairs = [(1, "none"), *((hosts, scheme) for hosts in (2, 4, 8) for scheme in SCHEMES)]
    sentence = advice([forecast(record(), hosts, scheme, bandwidth) for hosts, scheme in pairs])
    assert [part for part in parts if part not in sentence] == []
    assert advice([forecast(record(), 1, "none", bandwidth)]).startswith("On 1 host")
