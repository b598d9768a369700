"""Draw the pictures of the pages from the figures that these show: `python scripts/pictures.py`.

They lie in docs/assets/. They have no background, and text in a grey that can be read on white and on black.
"""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import PAGE, TABLES
from loss_curve import draw
from matplotlib import rc_context
from matplotlib.figure import Figure

FOLDER = PAGE.with_name("assets")
_SIZES = {"KB": 1 << 10, "MB": 1 << 20}
_LINES = {"ccl": "tab:blue", "oneCCL": "tab:gray", "gloo": "tab:orange", "mpi4py": "tab:green", "copy": "tab:brown"}
_GREY = "#7d8590"
_COLORED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_LOOK: dict[str, Any] = {
    **dict.fromkeys(_COLORED, _GREY),
    "savefig.transparent": True,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text, not outlines
    "svg.hashsalt": "cpudist",  # the same ids each time
}


def allreduce() -> Figure:
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
    return figure


def jobs() -> Figure:
    """Draw the speed of whole jobs as bars with their ranges."""
    head, rows = TABLES["jobs"]["head"], TABLES["jobs"]["rows"]
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2, sharey=True), ("float32", "bfloat16"), strict=True):
        values = [row[head.index(name)] for row in rows]
        errors = [[middle - low for middle, low, _ in values], [high - middle for middle, _, high in values]]
        colors = ["tab:blue" if "ccl" in row[0] else "tab:orange" for row in rows]
        names = [row[0].replace(", tcmalloc", ",\ntcmalloc") for row in rows]
        axes.barh(names, [middle for middle, _, _ in values], xerr=errors, color=colors, ecolor=_GREY, capsize=2)
        axes.set(title=name, xlabel="samples/s")
    axes.invert_yaxis()  # of both, which share it
    return figure


def losses() -> Figure:
    """Draw the losses of scripts/quickstart.sh, as it does itself."""
    return draw(json.loads(PAGE.with_name("quickstart.json").read_text()), "quickstart: 2 ranks, ccl")


PICTURES: dict[str, Callable[[], Figure]] = {"allreduce": allreduce, "jobs": jobs, "losses": losses}


def svg(name: str) -> bytes:
    """Return a picture as the content of its file."""
    file = io.BytesIO()
    with rc_context(_LOOK):
        PICTURES[name]().savefig(file, format="svg", metadata={"Date": None})
    return re.sub(rb" +$", b"", file.getvalue(), flags=re.MULTILINE)


def path(name: str) -> Path:
    """Return the file of a picture."""
    return FOLDER / f"{name}.svg"


if __name__ == "__main__":
    for each in PICTURES:
        path(each).write_bytes(svg(each))
