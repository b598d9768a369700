"""The topology as ``lscpu -p`` prints it (util-linux): a line for each CPU, under a line that names the columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from cpudist.errors import UserError
from cpudist.topology import Cpu, Topology, assemble

# The default columns of `lscpu -p`, for output without its head.
_COLUMNS = ["cpu", "core", "socket", "node", "", "l1d", "l1i", "l2", "l3"]


def parse_topology(text: str) -> Topology:
    """Read the output of ``lscpu -p`` or ``lscpu -p=…`` with the columns CPU and CORE at least.

    Memory stays unknown. Without a column for it, or with an empty one, there is one socket, one NUMA node, and one L3
    cache for each node. Offline CPUs, which ``-a`` and ``-c`` add, are left out.

    Raises:
        UserError: the text is not such output.
    """
    rows = [row for row in _rows(text) if row.get("core") and row.get("online", "y").lower() in ("y", "yes", "")]
    try:
        cpus = [_cpu(row) for row in rows]
    except (KeyError, ValueError):
        raise UserError("this is not the output of `lscpu -p`, numbers with commas between: make it again") from None
    if not cpus:
        raise UserError("this output lists no CPU: make it with `lscpu -p`")
    slow = _efficiency_cpus(rows)
    return assemble(replace(cpu, efficiency=cpu.number in slow) for cpu in cpus)


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
        # On some Arm machines core numbers repeat in a socket; threads of one core share its L1 cache.
        core=(int(row["core"]), row.get("l1d")),
        socket=int(row.get("socket") or 0),
        numa_node=int(row.get("node") or 0),
        l3=row.get("l3") or None,
    )


def _efficiency_cpus(rows: list[dict[str, str]]) -> frozenset[int]:
    """Return the slower CPUs of a hybrid processor, which lscpu does not mark.

    Intel's efficiency cores have one hardware thread, the others have two, and share an L2 cache in clusters.
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
