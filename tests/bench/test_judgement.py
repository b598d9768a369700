"""What `cpudist test` says of made-up figures: every fault is named, and noise is none."""

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist import typed_json
from cpudist.bench.cluster import pairs_in_rounds
from cpudist.bench.cluster_figures import ClusterFigures, HostFigures, LinkFigures, keep, last_bandwidth
from cpudist.bench.judgement import judge
from cpudist.cli.main import main
from cpudist.launchers import Placement
from cpudist.observability import product_speed
from cpudist.world import RankInfo

Change = Callable[[ClusterFigures], ClusterFigures]

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "cpudist": "0.2.0"}


def _noisy_host(number: int, noisy: Callable[[float], float]) -> HostFigures:
    flops = {"float32": noisy(8e11), "bfloat16": noisy(2e12)}
    return HostFigures(f"h{number}", VERSIONS, 8, flops, noisy(2e10), None, 0.3, noisy(3e9), 64 << 30, 32 << 30, True)


def cluster(hosts: int = 4, noise: float = 0.0, seed: int = 0) -> ClusterFigures:
    """Equal hosts on 1 Gbit/s, each figure up to `noise` worse than it is."""
    drawn = random.Random(seed)

    def noisy(value: float) -> float:
        return value * (1 - noise * drawn.random())

    return ClusterFigures(
        [_noisy_host(number, noisy) for number in range(hosts)],
        [LinkFigures(a, b, 1 / noisy(1 / 5e-5), noisy(1.17e8)) for a in range(hosts) for b in range(hosts) if a != b],
        {1024: 1e-4, 1 << 20: 0.02},
        (0.5, 0.5 + 1e-6),
        "ccl over mpi",
    )


def _host(number: int, **fields: Any) -> Change:
    def change(figures: ClusterFigures) -> ClusterFigures:
        hosts = list(figures.hosts)
        hosts[number] = dataclasses.replace(hosts[number], **fields)
        return dataclasses.replace(figures, hosts=hosts)

    return change


def _links(slow: Callable[[LinkFigures], bool], **fields: Any) -> Change:
    def change(figures: ClusterFigures) -> ClusterFigures:
        links = [dataclasses.replace(link, **fields) if slow(link) else link for link in figures.links]
        return dataclasses.replace(figures, links=links)

    return change


def _links_of(number: int, **fields: Any) -> Change:
    return _links(lambda link: number in (link.source, link.target), **fields)


SLOW = {"float32": 4.8e11, "bfloat16": 1.2e12}
# A change, the hosts or links that are named for it, and what the message says of the cause.
FAULTS: dict[str, tuple[Change, list[str], str]] = {
    "clock": (_host(3, flops=SLOW, clock=1.8e9), ["h3"], "1.8 GHz"),
    "cores": (_host(1, flops=SLOW, cores=4), ["h1"], "4 cores"),
    "unknown": (_host(0, flops=SLOW), ["h0"], "0.60 of the others' speed in float32, 0.60 in bfloat16"),
    "neighbour": (_host(0, flops=SLOW, load=1.5), ["h0"], "1.5 programs"),
    "quota": (
        lambda one: _links_of(2, bandwidth=1e6, latency=0.05)(_host(2, flops=SLOW, copied=2e9, quota=0.08)(one)),
        ["h2"],
        "a quota of 0.08",
    ),
    "whole quota": (_host(1, flops=SLOW, cores=4, quota=4.0), ["h1"], "a quota of 4 CPUs"),
    "memory": (_host(2, copied=1e10), ["h2"], "0.50"),
    "version": (_host(2, versions={**VERSIONS, "torch": "2.8.0"}), ["h2"], "torch 2.8.0"),
    "folder": (_host(1, shares_folder=False), ["h1"], "the working folder of h0"),
    "shared memory": (_host(0, shared_memory=1 << 20), ["h0"], "1 MB"),
    "one link": (_links(lambda link: (link.source, link.target) == (1, 3), bandwidth=1e7), ["h1 to h3"], "80 Mbit/s"),
    "one host's sending": (_links(lambda link: link.source == 3, bandwidth=1e7), ["h3"], "sends at most 80 Mbit/s"),
    "latency": (_links(lambda link: {link.source, link.target} == {0, 2}, latency=0.02), ["h0 and h2"], "20000 us"),
    "pair": (_links(lambda one: {one.source, one.target} == {1, 2}, bandwidth=1e7, latency=1), ["h1 and h2"], "80 M"),
    "late host": (_links_of(2, latency=0.02), ["h2"], "20000 us on all of its"),
    "slow host": (_links_of(3, bandwidth=1.175e7), ["h3"], "and receives at most 94"),
    "loss": (lambda figures: dataclasses.replace(figures, loss=(0.51, 0.5)), ["training"], "0.51"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(fault: str) -> None:
    change, about, cause = FAULTS[fault]
    found = judge(change(cluster()))
    assert [finding.about for finding in found] == about
    assert all(cause in finding.message and finding.remedy for finding in found)


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_a_fifth_of_noise_is_no_fault(hosts: int, seed: int) -> None:
    assert judge(cluster(hosts, 0.2, seed)) == []


def test_noise_beside_a_host_that_sends_slowly() -> None:
    """Figures of a busy machine: h2 was kept from its CPU for half of the time."""
    percent = {(0, 1): 69, (0, 2): 100, (1, 0): 22, (1, 2): 19, (2, 0): 49, (2, 1): 51}
    noisy = cluster(3)
    for ends, share in percent.items():
        noisy = _links(lambda link, ends=ends: (link.source, link.target) == ends, bandwidth=1e5 * share)(noisy)
    assert [finding.about for finding in judge(noisy)] == ["h1", "h2 to h0"]
    assert [finding.about for finding in judge(_host(0, load=4.0)(_host(1, load=4.0)(noisy)))] == ["h1"]


def test_figures_cross_processes_and_the_bandwidth_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert typed_json.read(ClusterFigures, json.loads(json.dumps(dataclasses.asdict(cluster())))) == cluster()
    assert cluster(1).bandwidth is last_bandwidth() is None
    keep(cluster(1))
    assert last_bandwidth() is None
    keep(cluster(4))
    assert last_bandwidth() == cluster(4).bandwidth == pytest.approx(1.5 * ((1 << 20) - 1024) / (0.02 - 1e-4))
    hosts = [RankInfo("", host.name, Placement(0, 1), threads=3) for host in cluster(4).hosts]
    speed = product_speed.of_ranks(hosts, "bfloat16")
    assert speed == pytest.approx(3 * sum(host.flops["bfloat16"] / host.cores for host in cluster(4).hosts))
    assert product_speed.of_ranks([*hosts, RankInfo("", "new", Placement(0, 1), threads=3)], "bfloat16") is None
    keep(dataclasses.replace(cluster(4), allreduces={1024: 1e-4, 1 << 20: 1e-4}))
    assert last_bandwidth() == cluster(4).bandwidth, "noise"
    for damaged in ("{", "[]", "{}", '{"bandwidth": "1"}'):
        for name in ("network.json", "products.json"):
            (tmp_path / "cpudist" / name).write_text(damaged)
        assert last_bandwidth() is product_speed.of_ranks(hosts, "bfloat16") is None


def test_plan_proposes_shares_by_the_measured_speeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hostfile, slow = tmp_path / "hosts", _host(1, flops={"float32": 2e11, "bfloat16": 5e11})
    for change, text, told in (
        (slow, "h0\nh1", "has measured: h0 share=0.80, h1 share=0.20"),
        (slow, "h0\nh1 share=0.3", "of a step's samples: h0 0.70, h1 0.30"),
        (slow, "h0\nnew", "of a step's samples: h0 0.50, new 0.50"),
        (lambda figures: figures, "h0:2\nh1:4", "of a step's samples: h0 0.33, h1 0.67"),
    ):
        keep(change(cluster(4)))
        hostfile.write_text(text)
        assert main(["plan", "--hostfile", str(hostfile)]) == 0
        assert told in capsys.readouterr().out


@given(st.integers(1, 40))
def test_every_pair_of_hosts_is_in_a_round(hosts: int) -> None:
    pairs = pairs_in_rounds(hosts)
    assert sorted(pairs) == [(a, b) for a in range(hosts) for b in range(a + 1, hosts)]
    at_once = hosts // 2
    for first in range(0, len(pairs), max(at_once, 1)):
        busy = [host for pair in pairs[first : first + at_once] for host in pair]
        assert len(busy) == len(set(busy))
