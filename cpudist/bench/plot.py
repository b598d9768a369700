"""Draw the results of a benchmark into a PNG file, with matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpudist.bench.between_hosts import ALONE
from cpudist.bench.collectives import COPY
from cpudist.bench.report import Comparison, by_kind
from cpudist.bench.timing import CCL, GLOO, Timings
from cpudist.console import size as size_cell

_COLORS = {CCL: "tab:blue", GLOO: "tab:orange", COPY: "lightgray", ALONE: "lightgray"}


def draw(results: Sequence[Comparison], path: Path) -> None:
    """Draw curves of the collectives' times by size, or bars of a step's times, into a PNG file."""
    from matplotlib.figure import Figure  # without pyplot, which would choose a window system

    kinds = list(by_kind(results))
    rows = (len(kinds) + 1) // 2
    figure = Figure(figsize=(12, 1 + 3 * rows), layout="constrained")
    for number, (title, comparisons) in enumerate(kinds, 1):
        axes = figure.add_subplot(rows, 2, number)
        axes.set(title=f"{title}, in seconds")
        (_bars if comparisons[0].size is None else _curves)(comparisons, axes)
    figure.savefig(path, dpi=120)


def _bars(comparisons: Sequence[Comparison], axes: Any) -> None:
    timings = comparisons[0].timings
    medians, errors = _medians_and_errors(list(timings.values()))
    axes.barh(list(timings), medians, xerr=errors, color=[_color(name) for name in timings], capsize=2)
    axes.invert_yaxis()


def _curves(comparisons: Sequence[Comparison], axes: Any) -> None:
    """Draw a line for each candidate, on two logarithmic axes."""
    sizes = [one.size for one in comparisons]
    for name in comparisons[0].timings:
        medians, errors = _medians_and_errors([one.timings[name] for one in comparisons])
        axes.errorbar(sizes, medians, errors, fmt="o-", color=_color(name), label=name, markersize=4, capsize=2)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [size_cell(size or 0) for size in sizes])
    axes.grid(alpha=0.3)
    axes.legend()


def _color(name: str) -> str:
    """Return the color of a candidate, such as ``gloo, powersgd``."""
    return next((color for part, color in _COLORS.items() if part in name), _COLORS[CCL])


def _medians_and_errors(timings: Sequence[Timings]) -> tuple[list[float], list[list[float]]]:
    medians = [one.median for one in timings]
    below = [max(one.median - one.spread[0], 0.0) for one in timings]
    above = [max(one.spread[1] - one.median, 0.0) for one in timings]
    return medians, [below, above]
