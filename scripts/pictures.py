"""Pictures of the site, drawn from the figures and the plan that its pages show, so that they cannot differ from them.

A page says where one stands by a comment, such as ``<!-- picture: allreduce -->``, which code hosts do not show.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

from figures import PAGE, TABLES
from loss_curve import draw
from matplotlib.figure import Figure

_SIZES = {"KB": 1 << 10, "MB": 1 << 20}
_LINES = {"ccl": "tab:blue", "oneCCL": "tab:gray", "gloo": "tab:orange", "mpi4py": "tab:green", "copy": "lightgray"}


def allreduce(_: str) -> bytes:
    """Draw the times of an allreduce over its size."""
    head = TABLES["allreduce"]["head"]
    rows = [row for row in TABLES["allreduce"]["rows"] if "," not in row[0]]  # float32
    sizes = [float(row[0].split()[0]) * _SIZES[row[0].split()[1]] for row in rows]
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, color in _LINES.items():
        axes.plot(sizes, [row[head.index(name)] for row in rows], "o-", color=color, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [row[0] for row in rows])
    axes.set(xlabel="size of the tensor", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend()
    return _svg(figure)


def jobs(_: str) -> bytes:
    """Draw the speed of whole jobs as bars with their ranges."""
    head, rows = TABLES["jobs"]["head"], TABLES["jobs"]["rows"]
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("float32", "bfloat16"), strict=True):
        values = [row[head.index(name)] for row in rows]
        errors = [[middle - low for middle, low, _ in values], [high - middle for middle, _, high in values]]
        colors = ["tab:blue" if "ccl" in row[0] else "tab:orange" for row in rows]
        names = [row[0].replace(", tcmalloc", ",\ntcmalloc") for row in rows]
        axes.barh(names, [middle for middle, _, _ in values], xerr=errors, color=colors, capsize=2)
        axes.set(title=name, xlabel="samples/s")
    axes.invert_yaxis()  # of both, which share it
    return _svg(figure)


def losses(_: str) -> bytes:
    """Draw the losses of scripts/quickstart.sh, as it does itself."""
    return _svg(draw(json.loads(PAGE.with_name("quickstart.json").read_text()), "quickstart: 2 ranks, ccl"))


def plan(page: str) -> bytes:
    """Draw the plan that the first block shows: a square for each core, with its rank."""
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.subplots()
    nodes = re.findall(r"NUMA node (\d+)\n +CPUs (\S+) +([\dc ]+)", page)
    for row, (node, cpus, cells) in enumerate(nodes):
        axes.text(-0.6, row, f"NUMA node {node}\nCPUs {cpus}", ha="right", va="center")
        for column, cell in enumerate(cells.split()):
            messages = cell.endswith("c")
            look = {"facecolor": f"C{cell.rstrip('c')}", "alpha": 0.35 if messages else 0.8, "edgecolor": "black"}
            axes.add_patch(_square(column, row, **look, hatch="//" if messages else ""))
            axes.text(column, row, f"rank {cell[0]}" + ("\nmessages" if messages else ""), ha="center", va="center")
    axes.set(xlim=(-2.4, max(len(cells.split()) for *_, cells in nodes) - 0.4), ylim=(len(nodes) - 0.5, -0.5))
    axes.set_axis_off()
    return _svg(figure)


PICTURES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "allreduce": (allreduce, "Times of an allreduce over the size of the tensor, both axes logarithmic"),
    "jobs": (jobs, "Samples per second of whole jobs, in float32 and bfloat16"),
    "losses": (losses, "Training and held-out loss of a small language model over 500 steps, both falling"),
    "plan": (plan, "The cores of two NUMA nodes: seven compute for each rank, and one moves its messages"),
}


def _square(column: int, row: int, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.45, row - 0.4), 0.9, 0.8, **look)


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
