"""Times and ratios as text in columns."""

from __future__ import annotations

from collections.abc import Sequence

from cpudist.bench.timing import Ratio, Timings

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def render(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines with aligned columns."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def time_cell(timings: Timings | None) -> str:
    """The median with the range of the rounds' medians, in one unit: `15.2 us (14.1-17)`."""
    if timings is None:
        return "-"
    scale, unit = next((entry for entry in _UNITS if timings.median >= entry[0]), _UNITS[-1])
    low, high = timings.spread
    return f"{_digits(timings.median / scale)} {unit} ({_digits(low / scale)}-{_digits(high / scale)})"


def rate_cell(timings: Timings) -> str:
    """How often in a second: `6.14 (5.9-6.2)`."""
    low, high = timings.spread
    return f"{_digits(1 / timings.median)} ({_digits(1 / high)}-{_digits(1 / low)})"


def ratio_cell(ratio: Ratio | None) -> str:
    """`1.07 (1.02-1.1)`."""
    if ratio is None:
        return "-"
    low, high = ratio.spread
    return f"{_digits(ratio.median)} ({_digits(low)}-{_digits(high)})"


def size_cell(size: int) -> str:
    """Bytes as `64 KB` or `4 MB`, in powers of two."""
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def _digits(value: float) -> str:
    """Three digits; more would be noise."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
