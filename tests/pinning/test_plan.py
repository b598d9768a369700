"""Plans: the rules on random machines and on real ones, and what the cores of some machines do."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, machine_of

from cpudist.errors import UserError
from cpudist.pinning.plan import Part, Plan, PlanOptions, make_plan
from cpudist.topology import Cpu, assemble
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine


def machine(sockets: int = 1, nodes: int = 1, caches: int = 1, cores: int = 1, limits: Limits | None = None) -> Machine:
    """A regular machine: so many NUMA nodes in a socket, L3 caches in a node, cores in a cache."""
    places = product(range(sockets), range(nodes), range(caches), range(cores))
    cpus = [
        Cpu(number, number, socket, socket * nodes + node, (socket, node, cache))
        for number, (socket, node, cache, _core) in enumerate(places)
    ]
    return Machine(assemble(cpus), limits or Limits())


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """A real machine, any part of which may be used."""
    topology = machine_of(draw(st.sampled_from(sorted(LAYOUTS)))).topology
    cpus = sorted(topology.cpus)
    allowed = draw(st.none() | st.frozensets(st.sampled_from(cpus), min_size=1))
    quota = draw(st.none() | st.floats(0.1, len(cpus) + 2))
    counted = draw(st.none() | st.integers(1, len(cpus) + 2))
    return Machine(topology, Limits(allowed, quota, counted))


OPTIONS = st.builds(
    PlanOptions,
    ranks=st.integers(1, 12) | st.sampled_from(["socket", "numa", "l3"]),
    omp_threads=st.none() | st.integers(1, 6),
)


@settings(max_examples=150, deadline=None)  # the first time a layout is unpacked
@given(machines(), OPTIONS)
def test_the_rules(machine: Machine, options: PlanOptions) -> None:
    check(machine, options, make_plan(machine, options))


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_rules_on_real_machines(name: str) -> None:
    for ranks in (1, 2, 3, 4, 7, 16, "socket", "numa", "l3"):
        options = PlanOptions(ranks)  # type: ignore[arg-type]
        check(machine_of(name), options, make_plan(machine_of(name), options))


def check(machine: Machine, options: PlanOptions, plan: Plan) -> None:
    usable = machine.usable
    core_of = {cpu: core for core in usable.cores for cpu in core.cpus}
    ranks = plan.ranks
    assert [rank.rank for rank in ranks] == list(range(len(ranks)))
    if isinstance(options.ranks, int):
        assert len(ranks) == options.ranks

    # Nothing outside what is allowed; what is allowed is used or named as idle.
    used = [cpu for rank in ranks for cpu in rank.cpus]
    assert set(used) <= usable.cpus
    assert set(used) | set(plan.idle_cpus) == usable.cpus
    assert not set(used) & set(plan.idle_cpus)

    # No core twice, unless there are fewer than ranks, and then it is said.
    cores = [core_of[cpu] for rank in ranks for cpu in {core_of[cpu].cpus[0] for cpu in rank.cpus}]
    if len(set(cores)) < len(cores):
        assert len(ranks) > len(usable.cores)
        assert any(line.startswith("over-subscribed") for line in plan.warnings)
    for rank in ranks:
        assert rank.cpus, "every rank computes"
        assert rank.omp_threads == (options.omp_threads or len(rank.cpus))
        assert set(rank.numa_nodes) == {core_of[cpu].numa_node for cpu in rank.cpus}
        assert len({core_of[cpu] for cpu in rank.cpus}) == len(rank.cpus), "second hardware threads stay idle"

    # No rank straddles NUMA nodes unless that was wished.
    used_nodes = {core_of[cpu].numa_node for cpu in used}
    wide = [rank for rank in ranks if len(rank.numa_nodes) > 1]
    if wide and options.ranks != "socket":
        assert isinstance(options.ranks, int)
        assert options.ranks < len(used_nodes)
    said = any("spans the NUMA nodes" in line for line in plan.warnings)
    assert said == (bool(wide) and options.ranks != "socket")

    # All that may be used is: every core, as far as a quota pays.
    limits = [limit for limit in (machine.limits.quota, machine.limits.counted) if limit is not None]
    if not limits:
        assert set(usable.cores) == set(cores) or len(ranks) > len(usable.cores)
        assert plan.pinned
    else:
        threads = sum(len(rank.cpus) for rank in ranks)
        assert threads <= max(min(limits), 1, len(ranks))
        if min(limits) >= len(usable.cores):
            assert plan.pinned
            assert set(usable.cores) == set(cores) or len(ranks) > len(usable.cores)

    # A rank for each part, inside that part, as far as a quota pays.
    if isinstance(options.ranks, str):
        part = "numa_node" if options.ranks == "numa" else options.ranks
        parts = [{getattr(core_of[cpu], part) for cpu in rank.cpus} for rank in ranks]
        assert all(len(own) == 1 for own in parts)
        there = {getattr(core, part) for core in usable.cores}
        assert len(ranks) == len(set.union(*parts)) <= len(there)
        pays = int(min(limits, default=len(usable.cores)))
        assert len(ranks) == min(len(there), max(pays, 1))

    # Ranks of one NUMA node have as many CPUs as each other, or one core more.
    for node in used_nodes:
        sizes = [len({core_of[cpu] for cpu in rank.cpus}) for rank in ranks if rank.numa_nodes == (node,)]
        if sizes and isinstance(options.ranks, int):
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("threads", [None, 1, 8, 9])
def test_threads_of_the_user_stay(threads: int | None) -> None:
    plan = make_plan(machine(cores=16), PlanOptions(2, threads))
    assert [rank.cpus for rank in plan.ranks] == [tuple(range(8)), tuple(range(8, 16))]
    assert [rank.omp_threads for rank in plan.ranks] == [threads or 8] * 2
    assert any(line.startswith("over-subscribed") for line in plan.warnings) is (threads == 9)


def test_ranks_follow_l3_caches_inside_a_node() -> None:
    plan = make_plan(machine(nodes=2, caches=4, cores=3), PlanOptions(4))
    assert [rank.cpus for rank in plan.ranks] == [tuple(range(6 * rank, 6 * rank + 6)) for rank in range(4)]


@pytest.mark.parametrize(
    ("there", "limits", "ranks", "cores", "pinned"),
    [
        ({"cores": 32}, Limits(quota=8.0), 2, [4, 4], False),
        ({"cores": 32}, Limits(quota=0.5), 1, [1], False),
        ({"cores": 32}, Limits(quota=3.0), 4, [1] * 4, False),
        ({"cores": 32}, Limits(quota=64.0), 1, [32], True),
        ({"cores": 32}, Limits(counted=16), 4, [4] * 4, False),  # by Slurm
        ({"nodes": 2, "cores": 16}, Limits(frozenset(range(12)) | {16, 17, 18, 19}), 4, [4] * 4, True),
        ({"sockets": 2, "cores": 8}, Limits(quota=8.0), "numa", [4, 4], False),
        ({"sockets": 2, "nodes": 4, "cores": 8}, Limits(quota=1.5), "numa", [1], False),
    ],
)
def test_ranks_share_what_is_allowed(
    there: dict[str, int], limits: Limits, ranks: int | Part, cores: list[int], pinned: bool
) -> None:
    plan = make_plan(machine(**there, limits=limits), PlanOptions(ranks))
    assert [len(rank.cpus) for rank in plan.ranks] == cores
    assert plan.pinned is pinned
    assert any("not pinned" in line for line in plan.warnings) is not pinned


def test_what_cannot_be_placed() -> None:
    with pytest.raises(UserError, match="no CPU may be used"):
        make_plan(machine(cores=2, limits=Limits(frozenset({7}))), PlanOptions(1))
    with pytest.raises(UserError, match="at least one rank"):
        make_plan(machine(cores=2), PlanOptions(0))
