"""Draw the results of a benchmark into a PNG file, with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpudist.bench.between_hosts import ALONE, HostTimes
from cpudist.bench.collectives import COPY, CollectiveTimes, Comparison
from cpudist.bench.timing import CCL, GLOO, Timings
from cpudist.console import size as size_cell

_COLORS = {CCL: "tab:blue", GLOO: "tab:orange", COPY: "lightgray", ALONE: "lightgray"}


def draw(results: CollectiveTimes | HostTimes, path: Path) -> None:
    """Draw bars of the results, and curves of the allreduce's time by size, into a PNG file."""
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    panels = results.panels()
    allreduces = []
    if isinstance(results, CollectiveTimes):
        allreduces = [one for one in results.comparisons if (one.operation, one.dtype) == ("allreduce", "float32")]
    rows = len(panels) + bool(allreduces)
    figure = Figure(figsize=(9, 1 + 3 * rows), layout="constrained")
    axes = list(figure.subplots(rows, 1, squeeze=False).flat)
    if allreduces:
        _draw_sizes(allreduces, axes.pop(0))
    for (title, timings), each in zip(panels.items(), axes, strict=True):
        medians, errors = _medians_and_errors(list(timings.values()))
        each.barh(list(timings), medians, xerr=errors, color=[_color(name) for name in timings], capsize=2)
        each.invert_yaxis()
        each.set(title=title)
    figure.savefig(path, dpi=120)


def _draw_sizes(comparisons: list[Comparison], axes: Any) -> None:
    """Draw a line for each candidate, on two logarithmic axes."""
    for name, color in _COLORS.items():
        points = [(one.size, one.timings[name]) for one in comparisons if name in one.timings]
        if points:
            sizes, timings = zip(*points, strict=True)
            medians, errors = _medians_and_errors(timings)
            axes.errorbar(sizes, medians, errors, fmt="o-", color=color, label=name, markersize=4, capsize=2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([one.size for one in comparisons], [size_cell(one.size) for one in comparisons])
    axes.set(title="allreduce, float32", xlabel="size of the tensor", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend()


def _color(name: str) -> str:
    """Return the color of a bar, such as ``gloo, powersgd`` or ``broadcast of 16 MB, ccl``."""
    return next((color for part, color in _COLORS.items() if part in name), _COLORS[CCL])


def _medians_and_errors(timings: Sequence[Timings]) -> tuple[list[float], list[list[float]]]:
    """Return the medians, and the spread below and above each of them."""
    medians = [one.median for one in timings]
    below = [max(one.median - one.spread[0], 0.0) for one in timings]
    above = [max(one.spread[1] - one.median, 0.0) for one in timings]
    return medians, [below, above]
