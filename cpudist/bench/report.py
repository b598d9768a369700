"""The results of a benchmark: their tables, the JSON file with the description of the machine, and the pictures."""

import itertools
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from cpudist.bench.timing import ALONE, CCL, COPY, GLOO, Timings, ratio
from cpudist.console import aligned, number_of, size
from cpudist.job import Job
from cpudist.topology.machine import allowed_cpus, cpu_model
from cpudist.version import __version__

_COLORS = {CCL: "tab:blue", GLOO: "tab:orange", COPY: "lightgray", ALONE: "lightgray"}
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
# Prefixes of variables that change the speed of ranks. The report has those that are set.
_RECORDED = ("CCL_", "I_MPI_", "FI_", "OMP_", "KMP_", "GLOO_", "MPICH_")
_NOT_RECORDED = ("I_MPI_INFO_", "I_MPI_HYDRA_")  # Intel MPI sets these itself


@dataclass(frozen=True)
class Comparison:
    """Times of the candidates for one operation."""

    operation: str
    dtype: str
    timings: dict[str, Timings]
    pairs: tuple[tuple[str, str], ...]  # candidates whose ratio is reported, the numerator first
    size: int | None = None  # bytes of a rank's tensor, or of the larger one of two tensors; None for a training step

    @property
    def ratios(self) -> dict[tuple[str, str], Timings]:
        return {pair: ratio(*(self.timings[name] for name in pair)) for pair in self.pairs}

    def as_dict(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "bytes": self.size,
            "seconds": {name: timings.as_dict() for name, timings in self.timings.items()},
            "ratios": {"/".join(pair): found.as_dict() for pair, found in self.ratios.items()},
        }


def by_kind(comparisons: Iterable[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    """Yield each operation and number format, as a title, with its comparisons, which have the same candidates."""
    for title, group in itertools.groupby(comparisons, lambda one: f"{one.operation}, {one.dtype}"):
        yield title, list(group)


def tables(comparisons: Iterable[Comparison]) -> str:
    """Return tables of times and ratios; a row is a size of a collective, or a candidate for a training step."""
    return "\n\n".join(block for title, kind in by_kind(comparisons) for block in _blocks(title, kind))


def _blocks(title: str, comparisons: Sequence[Comparison]) -> Iterator[str]:
    first = comparisons[0]
    if first.size is None:
        rows = [[pair[0], time_cell(first.timings[pair[0]]), ratio_cell(of)] for pair, of in first.ratios.items()]
        yield f"{title}\n" + table(["", "time", f"of {first.pairs[0][1]}"], rows)
        return
    times = [[size(one.size or 0), *map(median_cell, one.timings.values())] for one in comparisons]
    yield f"{title}\n" + table(["size", *first.timings], times)
    if first.pairs:
        ratios = [[size(one.size or 0), *map(ratio_cell, one.ratios.values())] for one in comparisons]
        yield table(["size", *map(" / ".join, first.pairs)], ratios)


def environment(job: Job) -> dict[str, Any]:
    """Return a description of the job, and of this rank's machine and software."""
    world = job.world
    return {
        "cpudist": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_model": cpu_model(),
        "cpus": allowed_cpus(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_RECORDED) and not name.startswith(_NOT_RECORDED)
        },
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        **job.backend.details(),
        "backend": world.backend,
        "launcher": world.launcher,
        "world_size": world.size,
        "hosts": list(world.hosts),
        "transport": job.backend.transport(),
        "threads": torch.get_num_threads(),
    }


def headline(environment: Mapping[str, Any]) -> str:
    """Return the lines above a table: the job, rank 0's machine, and the definition of a time."""
    carriers = [name.removeprefix("carried_by_") for name in environment if name.startswith("carried_by_")]
    transports = f"{', '.join(carriers)}; oneCCL uses " if carriers else ""
    return (
        f"{environment['world_size']} ranks on {number_of(len(environment['hosts']), 'host')}, "
        f"{environment['launcher']}, {environment['backend']} over {transports}{environment['transport']}\n"
        f"rank 0: cpus {environment['cpus']}, {number_of(environment['threads'], 'thread')}, "
        f"{environment['cpu_model']}\n"
        "times: median of all calls (range of the rounds' medians)"
    )


def write(path: Path, benchmark: str, environment: Mapping[str, Any], results: Iterable[Comparison]) -> None:
    content = {"benchmark": benchmark, "environment": environment, "results": [one.as_dict() for one in results]}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(aligned([head, *rows]))


def time_cell(timings: Timings) -> str:
    """Return the median with the range of the rounds, in one unit: ``15.2 us (14.1-17)``."""
    scale, unit = next((entry for entry in _UNITS if timings.median >= entry[0]), _UNITS[-1])
    return _cell(timings, scale, f" {unit}")


def median_cell(timings: Timings) -> str:
    return time_cell(timings).partition(" (")[0]


def ratio_cell(ratio: Timings) -> str:
    """Return the median with the range of the rounds: ``1.07 (1.02-1.1)``."""
    return _cell(ratio)


def _cell(timings: Timings, scale: float = 1.0, unit: str = "") -> str:
    values = [value / scale for value in (timings.median, *timings.spread)]
    median, low, high = (f"{value:.0f}" if value >= 100 else f"{value:.3g}" for value in values)
    return f"{median}{unit} ({low}-{high})"


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
    axes.set_xticks(sizes, [size(one or 0) for one in sizes])
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
