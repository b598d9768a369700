"""The topology as ``lscpu -p`` prints it (util-linux): a line for each CPU, under a line that names the columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cpudist.errors import UserError
from cpudist.machine.topology import Cpu, Topology, assemble

# What `lscpu -p` has always printed, for output whose head is lost.
_COLUMNS = ["cpu", "core", "socket", "node", "", "l1d", "l1i", "l2", "l3"]


def parse_topology(text: str) -> Topology:
    """Read the output of ``lscpu -p`` or ``lscpu -p=…`` with the columns CPU and CORE at least.

    Memory is unknown. Columns that are missing or empty count as one socket, one NUMA node, one L3 cache for each node.
    Offline CPUs, which ``-a`` and ``-c`` add, are left out.

    Raises:
        UserError: the text is not such output.
    """
    rows = [row for row in _rows(text) if row.get("core") and row.get("online", "y").lower() in ("y", "yes", "")]
    try:
        cpus = [_cpu(row) for row in rows]
    except (KeyError, ValueError):
        raise UserError("this is not the output of `lscpu -p`: expected numbers, separated by commas") from None
    if not cpus:
        raise UserError("no CPU in this output: make it with `lscpu -p`")
    slow = _efficiency_cpus(rows)
    return assemble(cpu if cpu.number not in slow else _slow(cpu) for cpu in cpus)


def _rows(text: str) -> Iterator[dict[str, str]]:
    columns = _COLUMNS
    for line in text.splitlines():
        fields = [field.strip() for field in line.lstrip("# ").replace(":", ",").split(",")]
        if line.startswith("#"):
            if "cpu" in (names := [field.lower() for field in fields]):
                columns = names
        elif line.strip():
            yield {name: value for name, value in zip(columns, fields, strict=False) if name}


def _cpu(row: dict[str, str]) -> Cpu:
    return Cpu(
        int(row["cpu"]),
        # On some Arm machines the number repeats in its socket; what shares a core shares its L1 cache too.
        core=(int(row["core"]), row.get("l1d")),
        socket=int(row.get("socket") or 0),
        numa_node=int(row.get("node") or 0),
        l3=row.get("l3") or None,
    )


def _slow(cpu: Cpu) -> Cpu:
    return Cpu(cpu.number, cpu.core, cpu.socket, cpu.numa_node, cpu.l3, efficiency=True)


def _efficiency_cpus(rows: list[dict[str, str]]) -> frozenset[int]:
    """The slower CPUs of a hybrid processor, which lscpu does not name.

    Intel's efficiency cores have one hardware thread where the others have two, and share an L2 cache in clusters.
    """
    threads = Counter((row.get("socket"), row.get("core")) for row in rows)
    cores_of_l2: dict[str, set[tuple[str | None, str | None]]] = {}
    for row in rows:
        if row.get("l2"):
            cores_of_l2.setdefault(row["l2"], set()).add((row.get("socket"), row.get("core")))
    if len(set(threads.values())) < 2:
        return frozenset()
    return frozenset(
        int(row["cpu"])
        for row in rows
        if threads[row.get("socket"), row.get("core")] == 1 and len(cores_of_l2.get(row.get("l2", ""), ())) > 1
    )
