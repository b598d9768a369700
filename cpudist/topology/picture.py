"""Draw a plan in plain text: every core of the machine with its tasks."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from cpudist.console import number_of, size
from cpudist.topology import Core, NumaNode, Topology
from cpudist.topology.cpulist import format_list
from cpudist.topology.machine import Machine
from cpudist.topology.pinning_plan import Plan, RankPlan

_IDLE, _FORBIDDEN = ".", "x"


def draw(machine: Machine, plan: Plan, width: int) -> str:
    """Return the machine and the plan as lines of at most `width` characters, if the width of one core fits."""
    lines = [*_wrapped(_machine_line(machine), width)]
    lines += [line for origin in _limit_lines(machine) for line in _wrapped(origin, width)]
    cells = _cells(machine.topology, machine.usable, plan)
    lines += ["", *_cores(machine.topology, cells, width), "", *_legend(cells, plan, width), ""]
    lines += [line for rank in plan.ranks for line in _wrapped(_sentence(rank), width)]
    if plan.idle_cpus:
        lines += ["", *_wrapped(f"idle CPUs: {format_list(plan.idle_cpus)}{_why_idle(machine, plan)}", width)]
    return "\n".join(lines)


def _machine_line(machine: Machine) -> str:
    topology = machine.topology
    nodes = [node for node in topology.numa_nodes if any(core.numa_node == node.number for core in topology.cores)]
    parts = [
        number_of(len({core.socket for core in topology.cores}), "socket"),
        number_of(len(nodes), "NUMA node"),
        number_of(len({core.l3 for core in topology.cores}), "L3 group"),
        number_of(len(topology.cores), "core"),
        number_of(len(topology.cpus), "CPU") + (" (hardware threads)" if topology.threads_per_core > 1 else ""),
    ]
    memory = _memory(topology)
    return "machine: " + ", ".join(parts) + (f", {size(memory)} of memory" if memory else "")


def _memory(topology: Topology) -> int:
    """Return the bytes of all NUMA nodes; 0 where they are unknown."""
    return sum(node.memory or 0 for node in topology.numa_nodes)


def _limit_lines(machine: Machine) -> Iterator[str]:
    limits = machine.limits
    if len(machine.usable.cpus) < len(machine.topology.cpus):
        yield f"this process may use only the CPUs {format_list(machine.usable.cpus)}"
    for origin in limits.origins:
        yield f"this process is limited by {origin}"
    memory = _memory(machine.topology)
    # A cgroup's limit may exceed the machine's memory, for example in a VM that gets its memory on demand.
    if limits.memory is not None and not 0 < memory <= limits.memory:
        yield f"this process may use only {size(limits.memory)} of memory"


def _cores(topology: Topology, cells: Mapping[Core, str], width: int) -> Iterator[str]:
    """Yield one cell for each core, in a row for each L3 group, under its NUMA node and socket."""
    wide = max(len(cell) for cell in cells.values()) + 1
    memory = {node.number: _bytes_of(node) for node in topology.numa_nodes}
    for socket, of_socket in groupby(topology.cores, key=lambda core: core.socket):
        yield f"socket {socket}"
        for node, of_node in groupby(of_socket, key=lambda core: core.numa_node):
            yield f"  NUMA node {node}{memory[node]}"
            for _, of_l3 in groupby(of_node, key=lambda core: core.l3):
                group = list(of_l3)
                cpus = f"    CPUs {format_list(core.cpus[0] for core in group)}"
                row = "".join(f"{cells[core]:<{wide}}" for core in group)
                yield from _row(f"{cpus:<24}", row, wide, width)
    with_cores = {core.numa_node for core in topology.cores}
    for memory_only in (node for node in topology.numa_nodes if node.number not in with_cores):
        yield f"NUMA node {memory_only.number}{_bytes_of(memory_only)}, memory only"


def _row(head: str, row: str, wide: int, width: int) -> Iterator[str]:
    """Yield `head` and the cells of `row`, wrapped to lines of `width` characters."""
    if len(head) + wide > width or len(head) > 24:
        yield from textwrap.wrap(head.strip(), width, initial_indent="    ", subsequent_indent="      ")
        head = " " * min(6, max(width - wide, 0))
    room = max((width - len(head)) // wide, 1) * wide
    for begin in range(0, len(row), room):
        yield (head if begin == 0 else " " * len(head)) + row[begin : begin + room].rstrip()


def _cells(topology: Topology, usable: Topology, plan: Plan) -> dict[Core, str]:
    tasks: dict[int, list[str]] = {}
    for rank in plan.ranks:
        for cpu in rank.cpus:
            tasks.setdefault(cpu, []).append(f"{rank.rank}")
    cells = {}
    for core in topology.cores:
        of_core = list(dict.fromkeys(task for cpu in core.cpus for task in tasks.get(cpu, ())))
        nothing = _IDLE if usable.cpus & set(core.cpus) else _FORBIDDEN
        cells[core] = "+".join(of_core) or nothing
    return cells


def _legend(cells: Mapping[Core, str], plan: Plan, width: int) -> Iterator[str]:
    parts = ["each cell is a core: 0 computes for rank 0"]
    if any("+" in cell for cell in cells.values()):
        parts.append("0+1 computes for both in turn")
    if _IDLE in cells.values():
        parts.append(f"{_IDLE} idle")
    if _FORBIDDEN in cells.values():
        parts.append(f"{_FORBIDDEN} not for this process")
    yield from _wrapped(", ".join(parts), width)
    if not plan.pinned:
        yield from _wrapped("ranks are not pinned: the picture shows how many cores each rank gets, not which", width)


def _sentence(rank: RankPlan) -> str:
    cpus = f"CPU{'s' * (len(rank.cpus) > 1)} {format_list(rank.cpus)}"
    return f"rank {rank.rank} computes with {number_of(rank.omp_threads, 'thread')} on {cpus}"


def _why_idle(machine: Machine, plan: Plan) -> str:
    idle = set(plan.idle_cpus)
    second = {cpu for core in machine.usable.cores for cpu in core.cpus[1:]}
    return " (second hardware threads would not make computing faster)" if idle & second else ""


def _bytes_of(node: NumaNode) -> str:
    return "" if node.memory is None else f", {size(node.memory)}"


def _wrapped(text: str, width: int) -> Sequence[str]:
    return textwrap.wrap(text, max(width, 20), subsequent_indent="  ", break_long_words=True) or [text]
