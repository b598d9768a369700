"""Draw a plan in plain text: every core of the machine with its ranks."""

import textwrap
from collections.abc import Iterator, Mapping
from itertools import groupby

from cpudist.console import number_of, size
from cpudist.pinning.plan import Plan, RankPlan
from cpudist.topology import Core, Topology
from cpudist.topology.kernel_files import format_list
from cpudist.topology.machine import Machine

_IDLE, _FORBIDDEN = ".", "x"
_HEAD = 24  # least width of the column "CPUs …" before the cells of an L3 group


def draw(machine: Machine, plan: Plan, width: int) -> str:
    """Return the machine and the plan as text, in lines of at most `width` characters (20 if it is smaller)."""
    cells = _cells(machine, plan)
    lines = [_machine_line(machine.topology), *_limit_lines(machine), "", *_cores(machine.topology, cells), ""]
    lines += [*_legend(cells, plan), "", *map(_sentence, plan.ranks)]
    if plan.idle_cpus:
        second = {cpu for core in machine.usable.cores for cpu in core.cpus[1:]}
        why = " (second hardware threads would not make computing faster)" if second & {*plan.idle_cpus} else ""
        lines += ["", f"idle CPUs: {format_list(plan.idle_cpus)}{why}"]
    return "\n".join(part for line in lines for part in _wrapped(line, width))


def _machine_line(topology: Topology) -> str:
    cores = topology.cores
    parts = [
        number_of(len({core.socket for core in cores}), "socket"),
        number_of(len({core.numa_node for core in cores}), "NUMA node"),
        number_of(len({core.l3 for core in cores}), "L3 group"),
        number_of(len(cores), "core"),
        number_of(len(topology.cpus), "CPU") + (" (hardware threads)" if len(topology.cpus) > len(cores) else ""),
    ]
    return "machine: " + ", ".join(parts) + (f", {size(memory)} of memory" if (memory := _memory(topology)) else "")


def _memory(topology: Topology) -> int:
    """Return the bytes of all NUMA nodes; 0 where they are unknown."""
    return sum(node.memory or 0 for node in topology.numa_nodes)


def _limit_lines(machine: Machine) -> Iterator[str]:
    limits, usable = machine.limits, machine.usable
    if len(usable.cpus) < len(machine.topology.cpus):
        yield f"this process may use only the CPUs {format_list(usable.cpus)}"
    for origin in limits.origins:
        yield f"this process is limited by {origin}"
    # A cgroup's limit may exceed the machine's memory, for example in a VM that gets its memory on demand.
    if limits.memory is not None and not 0 < _memory(machine.topology) <= limits.memory:
        yield f"this process may use only {size(limits.memory)} of memory"


def _cores(topology: Topology, cells: Mapping[Core, str]) -> Iterator[str]:
    """Yield one cell for each core, in a row for each L3 group, under its NUMA node and socket."""
    wide = max(map(len, cells.values())) + 1
    memory = {node.number: f", {size(node.memory)}" if node.memory else "" for node in topology.numa_nodes}
    nodes = {number: f"NUMA node {number}{text}" for number, text in memory.items()}
    for socket, of_socket in groupby(topology.cores, key=lambda core: core.socket):
        yield f"socket {socket}"
        for node, of_node in groupby(of_socket, key=lambda core: core.numa_node):
            yield f"  {nodes[node]}"
            for _, of_l3 in groupby(of_node, key=lambda core: core.l3):
                group = list(of_l3)
                cpus = f"    CPUs {format_list(core.cpus[0] for core in group)}"
                yield f"{cpus:<{_HEAD}}" + "".join(f"{cells[core]:<{wide}}" for core in group)
    with_cores = {core.numa_node for core in topology.cores}
    yield from (f"{text}, memory only" for node, text in nodes.items() if node not in with_cores)


def _cells(machine: Machine, plan: Plan) -> dict[Core, str]:
    cells = {}
    for core in machine.topology.cores:
        ranks = [str(rank.rank) for rank in plan.ranks if not {*core.cpus}.isdisjoint(rank.cpus)]
        nothing = _IDLE if machine.usable.cpus & {*core.cpus} else _FORBIDDEN
        cells[core] = "+".join(ranks) or nothing
    return cells


def _legend(cells: Mapping[Core, str], plan: Plan) -> Iterator[str]:
    parts = {
        "each cell is a core: 0 computes for rank 0": True,
        "0+1 computes for both in turn": any("+" in cell for cell in cells.values()),
        f"{_IDLE} idle": _IDLE in cells.values(),
        f"{_FORBIDDEN} not for this process": _FORBIDDEN in cells.values(),
    }
    yield ", ".join(part for part, applies in parts.items() if applies)
    if not plan.pinned:
        yield "ranks are not pinned: the picture shows how many cores each rank gets, not which"


def _sentence(rank: RankPlan) -> str:
    cpus = f"{'CPU' if len(rank.cpus) == 1 else 'CPUs'} {format_list(rank.cpus)}"
    return f"rank {rank.rank} computes with {number_of(rank.omp_threads, 'thread')} on {cpus}"


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap a line of words or cells; further cells are placed below the first ones."""
    indent = _HEAD if line.startswith("    CPUs") and width > 1.5 * _HEAD else 2
    return textwrap.wrap(line, max(width, 20), subsequent_indent=" " * indent) or [""]
