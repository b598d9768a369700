"""Make a plan from a machine and options: the cores on which each rank computes. Nothing is read or changed.

The rules, the strongest one first:

1. Ranks stay within the limits of the process: affinity, cpusets, quotas.
2. A core belongs to one rank. Ranks share cores only if there are more ranks than cores; the plan then has a warning.
3. A rank stays inside one NUMA node. It spans several only if the user wants fewer ranks than nodes, or one rank per
   socket.
4. All cores are used. The ranks of one NUMA node differ by at most one core.
5. OpenMP's threads wait for the slowest one, so second hardware threads do not compute. The plan treats all cores as
   equally fast, also those of hybrid processors, as PyTorch does.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cpudist.console import number_of
from cpudist.errors import UserError
from cpudist.topology import Core
from cpudist.topology.kernel_files import format_list
from cpudist.topology.machine import Machine

Part = Literal["socket", "numa", "l3"]

THREADS = "OMP_NUM_THREADS"
# A torch that is built with MKL takes the number of threads from MKL, and MKL reads its own variable first.
_THREADS = ("MKL_NUM_THREADS", THREADS)
BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # Variables that bind threads to CPUs.


@dataclass(frozen=True)
class PlanOptions:
    """The user's options for a plan."""

    ranks: int | Part = "numa"  # number of ranks, or the part of the machine that gets one rank each
    omp_threads: int | None = None  # number of threads that the user has set for each rank; the plan keeps it
    threads_variable: str = THREADS  # environment variable that sets `omp_threads`


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of the node. All CPUs are the operating system's numbers."""

    rank: int  # its number on this node
    # CPUs on which it computes, one for each OpenMP thread unless the user has set the number of threads.
    cpus: tuple[int, ...]
    omp_threads: int
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The ranks of one node, in the order of their local ranks."""

    ranks: tuple[RankPlan, ...]
    # Usable CPUs that the plan leaves idle, such as second hardware threads or cores beyond a quota.
    idle_cpus: tuple[int, ...] = ()
    # Whether ranks are bound to their CPUs. Ranks are not bound under a CPU quota smaller than all CPUs: the quota
    # limits time, not CPUs, and other containers may use the same CPUs.
    pinned: bool = True
    warnings: tuple[str, ...] = ()


def make_plan(machine: Machine, options: PlanOptions) -> Plan:
    """Place ranks on the CPUs of `machine` that may be used."""
    allowed = machine.usable
    if not allowed.cores:
        why = "no CPU may be used: the affinity mask and the cgroup's cpuset have no online CPU in common"
        raise UserError(f"{why}; change one")
    least = options.ranks if isinstance(options.ranks, int) else 1
    if least < 1:
        raise UserError(f"a node needs at least one rank, not {least}: give --ppn 1 or more")
    cores = _affordable(machine, least, options.ranks)
    ranks = tuple(
        RankPlan(
            rank,
            cpus=tuple(sorted(core.cpus[0] for core in share)),
            omp_threads=options.omp_threads or len(share),
            numa_nodes=tuple(sorted({core.numa_node for core in share})),
        )
        for rank, share in enumerate(_shares(cores, options.ranks))
    )
    used = {cpu for rank in ranks for cpu in rank.cpus}
    return Plan(
        ranks,
        idle_cpus=tuple(sorted(allowed.cpus - used)),
        pinned=len(cores) == len(allowed.cores),
        warnings=(*_core_warnings(machine, ranks, cores), *_rank_warnings(ranks, options)),
    )


def threads_set(variables: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the number of threads that the user has set, and the name of its variable.

    A value that is not a positive number is ignored.
    """
    for name in _THREADS:
        text = variables.get(name, "").strip()
        if text.isdecimal() and int(text) > 0:
            return int(text), name
    return None


def _affordable(machine: Machine, least: int, ranks: int | Part) -> list[Core]:
    """Return the cores that a quota, or Slurm's number of CPUs, allows: at least one for each of the `least` ranks.

    With a quota of 1.5, one thread is never throttled, but two are throttled for a quarter of the time. Two ranks still
    get two cores, because on one core they would compute in turn.
    """
    cores, limits = machine.usable.cores, machine.limits
    paid = min((int(limit) for limit in (limits.quota, limits.counted) if limit is not None), default=len(cores))
    # Drop cores, first from the ranks that have most.
    turns = {core: turn for share in _shares(cores, ranks) for turn, core in enumerate(share)}
    kept = set(sorted(cores, key=lambda core: turns[core])[: max(paid, least)])
    return [core for core in cores if core in kept]


def _shares(cores: Sequence[Core], ranks: int | Part) -> list[list[Core]]:
    return [share for group, number in _groups(cores, ranks) for share in _split(group, number)]


def _groups(cores: Sequence[Core], ranks: int | Part) -> list[tuple[list[Core], int]]:
    """Return groups of cores, and how many ranks each group gets."""
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
    """Join neighbouring nodes into one group per rank. The groups are similar in size and have at least one node."""
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
    """Distribute ranks over NUMA nodes in proportion to cores (D'Hondt's method), at least one on each node."""
    counts = [1] * len(sizes)
    for _ in range(ranks - len(sizes)):
        roomiest = max(range(len(sizes)), key=lambda node: sizes[node] / (counts[node] + 1))
        counts[roomiest] += 1
    return counts


def _split(cores: Sequence[Core], ranks: int) -> list[list[Core]]:
    """Split cores into runs of neighbours whose lengths differ by at most one; excess ranks share cores."""
    if ranks > len(cores):
        return [[cores[rank * len(cores) // ranks]] for rank in range(ranks)]
    bounds = [rank * len(cores) // ranks for rank in range(ranks + 1)]
    return [list(cores[begin:end]) for begin, end in itertools.pairwise(bounds)]


def _core_warnings(machine: Machine, ranks: Sequence[RankPlan], cores: Sequence[Core]) -> Iterator[str]:
    """Yield warnings about the number of cores, each in one line with its remedy."""
    allowed, quota = machine.usable, machine.limits.quota
    if len(ranks) > len(cores):
        why = f"over-subscribed: {len(ranks)} ranks share {number_of(len(cores), 'core')}, which slows all of them"
        yield f"{why}; start at most {len(cores)} here"
    if quota is not None and len(ranks) > quota:
        why = f"over-subscribed: {len(ranks)} ranks share a CPU quota of {quota:g} and are stopped in turn"
        yield f"{why}; raise it or start fewer"
    if len(cores) < len(allowed.cores):
        limits = " and ".join(machine.limits.origins)
        why = f"{len(cores)} of {number_of(len(allowed.cores), 'core')} may be used at a time, because of {limits}"
        effect = "this limits the number of threads, but they are not pinned, since others may use the same cores"
        yield f"{why}: {effect}; ask for whole cores (a cpuset) to be pinned"


def _rank_warnings(ranks: Sequence[RankPlan], options: PlanOptions) -> Iterator[str]:
    """Yield warnings about the CPUs of single ranks, each in one line with its remedy."""
    if isinstance(options.ranks, int) and (wide := next((rank for rank in ranks if len(rank.numa_nodes) > 1), None)):
        nodes = format_list(wide.numa_nodes)
        why = f"rank {wide.rank} spans the NUMA nodes {nodes}, where memory is far from some cores"
        yield f"{why}; --ppn numa starts one rank for each node"
    sizes = sorted(len(rank.cpus) for rank in ranks)
    if sizes[-1] - sizes[0] > 1:
        yield f"ranks compute on {sizes[0]} to {sizes[-1]} CPUs and all wait for the slowest; try another --ppn"
    if options.omp_threads:
        yield f"{options.threads_variable}={options.omp_threads} is set and stays"
        if (fewest := sizes[0]) < options.omp_threads:
            why = f"over-subscribed: {options.omp_threads} threads share {number_of(fewest, 'CPU')} of a rank"
            yield f"{why}; set {options.threads_variable} to {fewest}"
