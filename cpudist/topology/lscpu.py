"""Read the topology from ``lscpu -p`` (util-linux), which prints a header of column names and a line for each CPU."""

from collections.abc import Iterator

from cpudist.errors import UserError
from cpudist.topology import Cpu, Topology, assemble

# The default columns of `lscpu -p`, used if the output has no header.
_COLUMNS = ["cpu", "core", "socket", "node", "", "l1d", "l1i", "l2", "l3"]


def parse_topology(text: str) -> Topology:
    """Read the output of ``lscpu -p`` or ``lscpu -p=…`` with the columns CPU and CORE at least.

    The size of the memory stays unknown. If a column is missing or empty, one socket, one NUMA node, or one L3 cache
    per node is assumed. Offline CPUs, which ``-a`` and ``-c`` add, are skipped.
    """
    rows = [row for row in _rows(text) if row.get("core") and row.get("online", "y").lower() in ("y", "")]
    try:
        cpus = [_cpu(row) for row in rows]
    except (KeyError, ValueError):
        raise UserError("this is not the output of `lscpu -p`, numbers with commas between: make it again") from None
    if not cpus:
        raise UserError("this output lists no CPU: make it with `lscpu -p`")
    return assemble(cpus)


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
