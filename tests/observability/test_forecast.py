"""The model of `cpudist forecast`."""

from typing import Any

import pytest

from cpudist.errors import UserError
from cpudist.observability.forecast import Forecast, advice, check, forecast

GBIT = 1.25e8  # bytes a second
# Eight groups, of which each is complete 0.1 s after the one before: 80 MB take 0.64 s on two hosts at 1 Gbit/s.
GROUPS = [[(7 - number) / 10, 10_000_000] for number in range(8)]
THREADS = [{"omp_threads": 1000}]  # which sums do not delay


def record(**fields: Any) -> dict[str, Any]:
    common = {"hosts": ["n0"], "world_size": 1, "backend": "ccl", "gradients": {"compress": "none"}, "pinning": THREADS}
    speed = {"step_seconds": {"median": 1.2, "p95": 1.2}, "samples_per_second": 10.0, "memory": 2 << 30}
    times = {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": GROUPS}}
    return {**common, **speed, **times, **fields}


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
def test_two_ranks_a_host_with_two_groups(fields: dict[str, Any], hosts: int, scheme: str, found: list[float]) -> None:
    """The first by hand: 60 MB are sent in 0.48 s, and work takes 0.025 s; 0.8775 s of 1.2 s were computing."""
    groups = [(0.2, 30_000_000), (0.0, 50_000_000)]
    run = record(
        hosts=["n0", "n1"], world_size=4, pinning=[{"omp_threads": 2}], step_seconds={"median": 1.2, "p95": 1.4}
    )
    run |= {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": groups}, **fields}
    step, waiting, rate, efficiency, memory = forecast(run, hosts, scheme, GBIT)[2:7]
    assert [step, waiting, rate, efficiency, memory - (2 << 30)] == pytest.approx(found, rel=1e-5)


def test_a_second_host_with_a_third_of_the_speed() -> None:
    """Two hosts compute 4/3 of one's samples in the same time, so twice as many take 1.5 times as long."""
    one, two = (forecast(record(), hosts, "none", 1000 * GBIT, (0.75, 0.25)) for hosts in (1, 2))
    assert (one.step, two.step, two.samples_per_second) == pytest.approx((1.2, 1.8, 10 / 0.75), rel=0.01)


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"step_seconds": {"median": None}}, "no times of gradients"),
        ({"gradient_times": None}, "no times of gradients"),
        ({"gradients": {"compress": "powersgd:8"}}, "--compress powersgd"),
        ({"hosts": ["n0", "n1"], "backend": "gloo", "gradient_times": {"waiting": None}}, "gloo does not measure;"),
    ],
)
def test_a_record_without_the_figures_is_refused(fields: dict[str, Any], missing: str) -> None:
    with pytest.raises(UserError, match=f"^out .*{missing}"):
        check(record(**fields), "out")
    check(record(gradients={"compress": "none: all ranks are on one host"}), "out")
    check(record(gradients=None, gradient_times={"waiting": None}), "out")
    check(record(hosts=["n0", "n1"]), "out")


def _found(hosts: int, compress: str, step: float, efficiency: float, waiting: float = 0.5) -> Forecast:
    return Forecast(hosts, compress, step, waiting, None, efficiency, 0)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ([], "On 1 hosts computing is the limit, and no --compress pays; from 1 to 1 each adds 1.00 of a host."),
        (
            [_found(2, "none", 1.0, 0.75), _found(2, "bf16", 0.952, 0.79)],
            "On 2 hosts computing is the limit, and --compress bf16 pays; from 1 to 2 each adds 0.58 of a host.",
        ),
        (
            [_found(2, "none", 1.0, 0.75), _found(2, "bf16", 0.953, 0.79)],
            "On 2 hosts computing is the limit, and no --compress pays; from 1 to 2 each adds 0.50 of a host.",
        ),
        (
            [
                *(_found(2, "none", 1.0, 0.9), _found(4, "none", 1.2, 0.695, 0.601)),
                *(_found(8, "none", 2, 0.5, 1.001), _found(8, "bf16", 1.91, 0.5), _found(8, "int8", 1.81, 0.5)),
            ],
            "On 8 hosts the network is the limit, and --compress int8 pays; from 2 to 4 each adds 0.49 of a host, "
            "which does not pay.",
        ),
    ],
)
def test_another_host_pays_if_it_adds_half_of_one(found: list[Forecast], sentence: str) -> None:
    assert advice([_found(1, "none", 1.0, 1.0), *found]) == sentence
