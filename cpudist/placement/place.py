"""From a machine and wishes to a plan.

The rules, in the order in which they win:

1. Nothing outside what may be used: affinity, cpusets, quotas.
2. A core belongs to one rank. Only where there are more ranks than cores do ranks share them, and the plan says so.
3. A rank stays inside one NUMA node. It spans several only where fewer ranks than nodes, or one for each socket, were
   wished.
4. All cores are used, and the ranks of a node get as many as each other, or one more.
5. OpenMP's threads wait for the slowest, so efficiency cores do not compute beside faster ones, nor does a second
   hardware thread of a core beside the first. Efficiency cores communicate and load data instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from cpudist.errors import UserError
from cpudist.machine.cpulist import format_list
from cpudist.machine.description import Machine
from cpudist.machine.topology import Core
from cpudist.placement.plan import Part, Plan, RankPlan, Wishes

# From so many cores on a rank keeps one for communication, at most an eighth of its computing. Intel's own advice is
# one of 24 (OMP_NUM_THREADS=23, CCL_WORKER_COUNT=1); of two, it costs more than it brings.
_CORES_FOR_A_COMMUNICATION_CORE = 8
# Of so many cores of a rank, one may load data.
CORES_FOR_A_DATA_CORE = 4


def make_plan(machine: Machine, wishes: Wishes) -> Plan:
    """Place ranks on what of `machine` may be used.

    Raises:
        UserError: no CPU may be used, or there is to be no rank.
    """
    allowed = machine.usable
    if not allowed.cores:
        raise UserError("no CPU may be used: the affinity mask and the cgroup's cpuset share none that is online")
    least = wishes.ranks if isinstance(wishes.ranks, int) else 1
    if least < 1:
        raise UserError(f"a node needs at least one rank, not {least}: give --ppn 1 or more")
    cores = _affordable(machine, least, wishes)
    computing = _fast(cores, least)
    spare = [core for core in cores if core not in computing]
    shares = [share for group, ranks in _groups(computing, wishes.ranks) for share in _split(group, ranks)]
    shared = len(shares) > len(computing)
    ranks = tuple(_rank_plan(rank, share, [] if shared else spare, wishes) for rank, share in enumerate(shares))
    used = {cpu for rank in ranks for cpu in rank.mask}
    return Plan(
        ranks,
        idle_cpus=tuple(sorted(allowed.cpus - used)),
        pinned=len(cores) == len(allowed.cores),
        warnings=tuple(_warnings(machine, ranks, cores, computing, wishes)),
    )


def _affordable(machine: Machine, ranks: int, wishes: Wishes) -> list[Core]:
    """The cores that a quota, or Slurm's count, pays for: one for each rank at least.

    A quota of 1.5 is one thread that never waits; two would be stopped for a quarter of the time. But two ranks on
    two cores are stopped less than two ranks on one.
    """
    cores, limits = list(machine.usable.cores), machine.limits
    threads = min((int(limit) for limit in (limits.quota, limits.counted) if limit is not None), default=None)
    if threads is None:
        return cores
    # One rank for each part: all parts keep as many cores as each other.
    groups = _by_part(cores, wishes.ranks) if isinstance(wishes.ranks, str) else [cores]
    turns = {core: turn for group in groups for turn, core in enumerate(group)}
    kept: set[Core] = set()
    for core in sorted(cores, key=lambda core: (core.efficiency, turns[core])):
        threads -= len(core.cpus) if wishes.smt else 1
        if threads < 0 and len(kept) >= ranks:
            break
        kept.add(core)
    return [core for core in cores if core in kept]


def _fast(cores: Sequence[Core], ranks: int) -> list[Core]:
    """The cores that compute: all of a kind, unless the faster ones are fewer than the ranks."""
    fast = [core for core in cores if not core.efficiency]
    return fast if len(fast) >= ranks else list(cores)


def _groups(cores: Sequence[Core], ranks: int | Part) -> list[tuple[list[Core], int]]:
    """Cores that belong together, and how many ranks they get."""
    if isinstance(ranks, str):
        return [(group, 1) for group in _by_part(cores, ranks)]
    nodes = _by_part(cores, "numa")
    if ranks < len(nodes):
        return [(group, 1) for group in _joined(nodes, ranks)]
    return list(zip(nodes, _apportioned([len(node) for node in nodes], ranks), strict=True))


def _by_part(cores: Sequence[Core], part: Part) -> list[list[Core]]:
    groups: dict[int, list[Core]] = {}
    for core in cores:
        key = {"socket": core.socket, "numa": core.numa_node, "l3": core.l3}[part]
        groups.setdefault(key, []).append(core)
    return list(groups.values())


def _joined(nodes: Sequence[list[Core]], ranks: int) -> list[list[Core]]:
    """Neighbouring nodes put together to as many groups as ranks, alike in size, at least one node in each."""
    total = sum(len(node) for node in nodes)
    groups: list[list[Core]] = [[]]
    done = 0
    for index, node in enumerate(nodes):
        nodes_left, groups_left = len(nodes) - index, ranks - len(groups)
        full = done >= total * len(groups) / ranks or nodes_left <= groups_left
        if groups[-1] and full and groups_left:
            groups.append([])
        groups[-1].extend(node)
        done += len(node)
    return groups


def _apportioned(sizes: Sequence[int], ranks: int) -> list[int]:
    """How many ranks each node gets: one, and every further one goes where a rank has most cores (D'Hondt's method)."""
    counts = [1] * len(sizes)
    for _ in range(ranks - len(sizes)):
        roomiest = max(range(len(sizes)), key=lambda node: sizes[node] / (counts[node] + 1))
        counts[roomiest] += 1
    return counts


def _split(cores: Sequence[Core], ranks: int) -> list[list[Core]]:
    """Runs of neighbouring cores, alike in number to one; where there are too few, ranks get the same ones."""
    if ranks > len(cores):
        return [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    bounds = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [list(cores[begin:end]) for begin, end in itertools.pairwise(bounds)]


def _rank_plan(rank: int, share: list[Core], spare: list[Core], wishes: Wishes) -> RankPlan:
    """Divide a rank's cores by what they do. Takes from `spare` what lies in the rank's NUMA nodes."""
    nodes = {core.numa_node for core in share}
    computing = list(share)

    def take(number: int, of_computing: int) -> list[Core]:
        near = [core for core in spare if core.numa_node in nodes][:number]
        for core in near:
            spare.remove(core)
        own = min(number - len(near), of_computing)
        return near + [computing.pop() for _ in range(own)]

    enough = len(share) >= _CORES_FOR_A_COMMUNICATION_CORE or len(share) > (wishes.omp_threads or len(share))
    communication = take(1, of_computing=1 if enough else 0) if wishes.communicates else []
    data = take(wishes.data_workers, of_computing=len(share) // CORES_FOR_A_DATA_CORE)
    cpus = tuple(sorted(cpu for core in computing for cpu in (core.cpus if wishes.smt else core.cpus[:1])))
    return RankPlan(
        rank,
        cpus,
        omp_threads=wishes.omp_threads or len(cpus),
        communication_cpus=tuple(core.cpus[0] for core in communication),
        data_cpus=tuple(sorted(core.cpus[0] for core in data)),
        numa_nodes=tuple(sorted(nodes)),
    )


def _warnings(
    machine: Machine, ranks: Sequence[RankPlan], cores: Sequence[Core], computing: Sequence[Core], wishes: Wishes
) -> list[str]:
    """What a user should know, one line each, with what to do about it."""
    lines = []
    allowed, quota = machine.usable, machine.limits.quota
    if len(ranks) > len(computing):
        lines.append(
            f"over-subscribed: {len(ranks)} ranks share {_count(len(computing), 'core')}, which slows all of them;"
            f" start at most {len(computing)} here"
        )
    if quota is not None and len(ranks) > quota:
        lines.append(
            f"over-subscribed: {len(ranks)} ranks share a CPU quota of {quota:g} and are stopped in turn; raise it or"
            " start fewer"
        )
    if len(cores) < len(allowed.cores):
        limits = " and ".join(machine.limits.origins)
        lines.append(
            f"{len(cores)} of {_count(len(allowed.cores), 'core')} may be used at a time, because of {limits}: threads"
            " are counted by that, but not pinned, since others may use the same cores; ask for whole cores (a cpuset)"
            " to be pinned"
        )
    if len(computing) < len(cores):
        slow = _count(len(cores) - len(computing), "efficiency core")
        lines.append(f"{slow} would slow the others down, so they do not compute")
    if isinstance(wishes.ranks, int) and (wide := next((rank for rank in ranks if len(rank.numa_nodes) > 1), None)):
        lines.append(
            f"rank {wide.rank} spans the NUMA nodes {format_list(wide.numa_nodes)}, where memory is far from some"
            " cores; --ppn numa starts one rank for each node"
        )
    sizes = sorted(len(rank.cpus) for rank in ranks)
    if sizes[-1] - sizes[0] > 1:
        lines.append(f"ranks compute on {sizes[0]} to {sizes[-1]} CPUs and all wait for the slowest; try another --ppn")
    if wishes.omp_threads:
        lines.append(f"{wishes.threads_variable}={wishes.omp_threads} is set and stays")
        if (fewest := sizes[0]) < wishes.omp_threads:
            lines.append(
                f"over-subscribed: {wishes.omp_threads} threads share {_count(fewest, 'CPU')} of a rank; set"
                f" {wishes.threads_variable} to {fewest}"
            )
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
