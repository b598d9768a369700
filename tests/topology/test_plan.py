"""Plans: the rules on random machines and on real ones, and what the cores of some machines do."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS, machine_of

from cpudist.errors import UserError
from cpudist.topology import Core, Cpu, assemble
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine
from cpudist.topology.pinning_plan import Part, Plan, PlanOptions, make_plan


def machine(
    sockets: int = 1, nodes: int = 1, caches: int = 1, cores: int = 1, threads: int = 1, limits: Limits | None = None
) -> Machine:
    """A regular machine: so many NUMA nodes in a socket, L3 caches in a node, cores in a cache."""
    places = [
        (socket, socket * nodes + node, (socket, node, cache))
        for socket in range(sockets)
        for node in range(nodes)
        for cache in range(caches)
        for _ in range(cores)
    ]
    cpus = [
        Cpu(number + thread * len(places), number, socket, node, cache)
        for number, (socket, node, cache) in enumerate(places)
        for thread in range(threads)
    ]
    return Machine(assemble(cpus), limits or Limits())


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Any machine, regular or not, any part of which may be used."""
    cpus = []
    for socket in range(draw(st.integers(1, 3))):
        for node in range(draw(st.integers(1, 3))):
            for cache in range(draw(st.integers(1, 3))):
                for core in range(draw(st.integers(1, 5))):
                    for _ in range(draw(st.integers(1, 2))):
                        number = len(cpus)
                        cpus.append(Cpu(number, (cache, core), socket, 10 * socket + node, cache))
    numbers = draw(st.permutations(range(len(cpus))))
    cpus = [dataclasses.replace(cpu, number=number) for cpu, number in zip(cpus, numbers, strict=True)]
    allowed = draw(st.none() | st.sets(st.sampled_from(numbers), min_size=1))
    quota = draw(st.none() | st.floats(0.1, len(cpus) + 2))
    counted = draw(st.none() | st.integers(1, len(cpus) + 2))
    return Machine(assemble(cpus), Limits(None if allowed is None else frozenset(allowed), quota, counted))


OPTIONS = st.builds(
    PlanOptions,
    ranks=st.integers(1, 12) | st.sampled_from(["socket", "numa", "l3"]),
    data_workers=st.integers(0, 3),
    omp_threads=st.none() | st.integers(1, 6),
)


@settings(max_examples=150)
@given(machines(), OPTIONS)
def test_the_rules(machine: Machine, options: PlanOptions) -> None:
    plan = make_plan(machine, options)
    check(machine, options, plan)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 16, "socket", "numa", "l3"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_rules_on_real_machines(name: str, ranks: int | str) -> None:
    options = PlanOptions(ranks)  # type: ignore[arg-type]
    found = machine_of(name)
    check(found, options, make_plan(found, options))


def _part(core: Core, part: str) -> int:
    return {"socket": core.socket, "numa": core.numa_node, "l3": core.l3}[part]


def check(machine: Machine, options: PlanOptions, plan: Plan) -> None:
    usable = machine.usable
    core_of = {cpu: core for core in usable.cores for cpu in core.cpus}
    ranks = plan.ranks
    assert [rank.rank for rank in ranks] == list(range(len(ranks)))
    if isinstance(options.ranks, int):
        assert len(ranks) == options.ranks

    # Nothing outside what is allowed; what is allowed is used or named as idle.
    used = [cpu for rank in ranks for cpu in rank.mask]
    assert set(used) <= usable.cpus
    assert set(used) | set(plan.idle_cpus) == usable.cpus
    assert not set(used) & set(plan.idle_cpus)

    # No core twice, unless there are fewer than ranks, and then it is said.
    cores = [core_of[cpu] for rank in ranks for cpu in {core_of[cpu].cpus[0] for cpu in rank.mask}]
    if len(set(cores)) < len(cores):
        assert len(ranks) > len(usable.cores)
        assert any(line.startswith("over-subscribed") for line in plan.warnings)
    for rank in ranks:
        jobs = (rank.cpus, rank.data_cpus)
        assert len(rank.mask) == sum(map(len, jobs)), "a CPU has one job"
        assert rank.cpus, "every rank computes"
        assert rank.omp_threads == (options.omp_threads or len(rank.cpus))
        assert set(rank.numa_nodes) == {core_of[cpu].numa_node for cpu in rank.mask}
        assert len({core_of[cpu] for cpu in rank.mask}) == len(rank.mask), "second hardware threads stay idle"

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
        threads = sum(len(rank.mask) for rank in ranks)
        assert threads <= max(min(limits), 1, len(ranks))
        if min(limits) >= len(usable.cores):
            assert plan.pinned
            assert set(usable.cores) == set(cores) or len(ranks) > len(usable.cores)

    # A rank for each part, inside that part, as far as a quota pays.
    if isinstance(options.ranks, str):
        parts = [{_part(core_of[cpu], options.ranks) for cpu in rank.cpus} for rank in ranks]
        assert all(len(part) == 1 for part in parts)
        there = {_part(core, options.ranks) for core in usable.cores}
        assert len(ranks) == len(set.union(*parts)) <= len(there)
        pays = int(min(limits, default=len(usable.cores)))
        assert len(ranks) == min(len(there), max(pays, 1))

    # Ranks of one NUMA node have as many CPUs as each other, or one core more.
    for node in used_nodes:
        sizes = [len({core_of[cpu] for cpu in rank.mask}) for rank in ranks if rank.numa_nodes == (node,)]
        if sizes and isinstance(options.ranks, int):
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("there", "options", "threads", "data"),
    [
        ({"sockets": 2, "cores": 24, "threads": 2}, PlanOptions("socket"), 24, [(), ()]),
        ({"cores": 16}, PlanOptions(1, data_workers=2), 14, [(14, 15)]),
        # Slurm's count of CPUs is a quota on threads.
        ({"cores": 64, "threads": 2, "limits": Limits(counted=16)}, PlanOptions(4), 4, [()] * 4),
    ],
)
def test_what_cores_do(there: dict[str, Any], options: PlanOptions, threads: int, data: list[tuple[int, ...]]) -> None:
    plan = make_plan(machine(**there), options)
    assert [rank.omp_threads for rank in plan.ranks] == [threads] * len(data)
    assert [rank.data_cpus for rank in plan.ranks] == data
    assert plan.pinned is not ("limits" in there)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("cores", [8, 16, 32])
def test_cores_for_data_are_at_most_an_eighth_or_beyond_the_threads_of_the_user(cores: int, workers: int) -> None:
    """OMP_NUM_THREADS is not set, below, at and above the cores of each of two ranks."""
    for threads in (None, 1, cores // 2, cores - 1, cores, cores + 1, 2 * cores):
        plan = make_plan(machine(cores=2 * cores), PlanOptions(2, workers, threads))
        data = min(workers, cores // 8 if threads is None else max(cores - threads, 0))
        for rank in plan.ranks:
            assert (len(rank.cpus), len(rank.data_cpus)) == (cores - data, data)
            assert rank.omp_threads == (threads or len(rank.cpus))
        said = any(line.startswith("over-subscribed") for line in plan.warnings)
        assert said is (threads is not None and threads > cores)


def test_ranks_follow_l3_caches_inside_a_node() -> None:
    plan = make_plan(machine(nodes=2, caches=4, cores=3), PlanOptions(4))
    assert [rank.mask for rank in plan.ranks] == [tuple(range(6 * rank, 6 * rank + 6)) for rank in range(4)]


def test_more_ranks_than_nodes_go_where_there_is_room() -> None:
    allowed = frozenset(range(12)) | {16, 17, 18, 19}
    plan = make_plan(machine(nodes=2, cores=16, limits=Limits(allowed)), PlanOptions(4))
    assert [(rank.numa_nodes, len(rank.mask)) for rank in plan.ranks] == [((0,), 4)] * 3 + [((1,), 4)]


@pytest.mark.parametrize(
    ("there", "quota", "ranks", "cores", "pinned"),
    [
        ({"cores": 32}, 1.5, 1, [1], False),
        ({"cores": 32}, 8.0, 2, [4, 4], False),
        ({"cores": 32}, 0.5, 1, [1], False),
        ({"cores": 32}, 3.0, 4, [1] * 4, False),
        ({"cores": 32}, 64.0, 1, [32], True),
        ({"sockets": 2, "cores": 8}, 8.0, "numa", [4, 4], False),
        ({"sockets": 2, "nodes": 4, "cores": 8}, 1.5, "numa", [1], False),
    ],
)
def test_threads_are_counted_by_the_quota(
    there: dict[str, int], quota: float, ranks: int | Part, cores: list[int], pinned: bool
) -> None:
    plan = make_plan(machine(**there, limits=Limits(quota=quota)), PlanOptions(ranks))
    assert [len(rank.mask) for rank in plan.ranks] == cores
    assert plan.pinned is pinned
    assert any("not pinned" in line for line in plan.warnings) is not pinned


def test_what_cannot_be_placed() -> None:
    with pytest.raises(UserError, match="no CPU may be used"):
        make_plan(machine(cores=2, limits=Limits(frozenset({7}))), PlanOptions(1))
    with pytest.raises(UserError, match="at least one rank"):
        make_plan(machine(cores=2), PlanOptions(0))
