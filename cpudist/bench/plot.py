"""The figures of a benchmark as a PNG; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpudist.bench.collectives import CollectiveTimes, Comparison
from cpudist.bench.ddp import DdpTimes, StepTimes
from cpudist.bench.jobs import JobTimes
from cpudist.bench.measure import CCL, COPY, GLOO, MPI, PIECES, RAW
from cpudist.bench.table import size_cell
from cpudist.bench.timing import Timings
from cpudist.bench.train import TrainTimes

_COLORS = {
    RAW: "tab:gray",
    PIECES: "tab:olive",
    CCL: "tab:blue",
    GLOO: "tab:orange",
    MPI: "tab:green",
    COPY: "lightgray",
}


def draw(times: CollectiveTimes | DdpTimes | TrainTimes | JobTimes, path: Path) -> None:
    """Draw a benchmark's results into a PNG file."""
    if isinstance(times, CollectiveTimes):
        _draw_collectives(times, path)
    elif isinstance(times, DdpTimes):
        _draw_ddp(times, path)
    elif isinstance(times, JobTimes):
        _draw_jobs(times, path)
    else:
        _draw_train(times, path)


def _draw_collectives(times: CollectiveTimes, path: Path) -> None:
    """Allreduce: time over size, both logarithmic. The other operations: bars, at their largest size."""
    others = {one.operation: one for one in times.comparisons if one.operation != "allreduce"}
    figure = _figure(width=13, height=5)
    left, right = figure.subplots(1, 2)
    allreduces = [one for one in times.comparisons if one.operation == "allreduce" and one.dtype == "float32"]
    _draw_sizes(allreduces, left)
    if others:
        _draw_operations(list(others.values()), right)
    figure.savefig(path, dpi=120)


def _draw_ddp(times: DdpTimes, path: Path) -> None:
    """A bar per backend and kind of buckets; one panel per dtype."""
    figure = _figure(width=5.5 * len(times.steps), height=4)
    for one, axes in zip(times.steps, figure.subplots(1, len(times.steps), squeeze=False).flat, strict=True):
        _draw_steps(one, axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=120)


def _draw_train(times: TrainTimes, path: Path) -> None:
    """A bar per choice, one panel per set of kernels."""
    figure = _figure(width=9, height=1 + 2.5 * len(times.parts))
    for (name, part), axes in zip(
        times.parts.items(), figure.subplots(len(times.parts), 1, squeeze=False).flat, strict=True
    ):
        medians, errors = _medians_and_errors(list(part.values()))
        axes.barh(list(part), medians, xerr=errors, color="tab:blue", capsize=2)
        axes.invert_yaxis()
        axes.set(title=f"training step, {name}", xlabel="seconds")
    figure.savefig(path, dpi=120)


def _draw_jobs(times: JobTimes, path: Path) -> None:
    """A bar per way to start the script, one panel per dtype."""
    dtypes = times.by_dtype()
    figure = _figure(width=9, height=1 + 2 * len(dtypes))
    for (dtype, rows), axes in zip(dtypes.items(), figure.subplots(len(dtypes), 1, squeeze=False).flat, strict=True):
        ran = [row for row in rows if row.outcomes]
        medians, errors = _medians_and_errors([row.per_sample() for row in ran])
        axes.barh([row.name for row in ran], medians, xerr=errors, color="tab:blue", capsize=2)
        axes.invert_yaxis()
        axes.set(title=f"whole jobs, {dtype}", xlabel="seconds per sample")
    figure.savefig(path, dpi=120)


def _figure(width: float, height: float) -> Any:
    # Not pyplot: it would pick a window system; a figure of its own needs none.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw_sizes(comparisons: list[Comparison], axes: Any) -> None:
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


def _draw_operations(comparisons: list[Comparison], axes: Any) -> None:
    _draw_bars({name: [one.timings[name] for one in comparisons] for name in (CCL, GLOO)}, axes)
    labels = [f"{one.operation}\n{size_cell(one.size)}" for one in comparisons]
    axes.set_xticks(range(len(labels)), labels, fontsize="small")
    axes.set(title="other operations, float32", ylabel="seconds")
    axes.legend()


def _draw_steps(one: StepTimes, axes: Any) -> None:
    _draw_bars({backend: list(choices.values()) for backend, choices in one.buckets.items()}, axes)
    axes.axhline(one.alone.median, color="tab:gray", linestyle="--", label="no communication")
    labels = [str(buckets).replace(", ", "\n") for buckets in one.buckets[CCL]]
    axes.set_xticks(range(len(labels)), labels)
    axes.set(title=f"training step, {one.dtype}", xlabel="buckets", ylabel="seconds")


def _draw_bars(groups: dict[str, list[Timings]], axes: Any) -> None:
    """For each place on the x axis one bar per name, side by side around it."""
    width = 0.8 / len(groups)
    for number, (name, timings) in enumerate(groups.items()):
        medians, errors = _medians_and_errors(timings)
        places = [place + (number + 0.5) * width - 0.4 for place in range(len(timings))]
        axes.bar(places, medians, width, yerr=errors, color=_COLORS[name], label=name, capsize=2)


def _medians_and_errors(timings: Sequence[Timings]) -> tuple[list[float], list[list[float]]]:
    """What matplotlib wants: the medians, and how far the spread goes below and above each."""
    medians = [one.median for one in timings]
    below = [max(one.median - one.spread[0], 0.0) for one in timings]
    above = [max(one.spread[1] - one.median, 0.0) for one in timings]
    return medians, [below, above]
