"""Write the tables of docs/performance.md from the figures in docs/performance.json: `python scripts/figures.py`.

A table stands under a comment such as ``<!-- table: allreduce -->``. A figure is a number, or a list of the median and
the range; those of the columns in `seconds` get a unit. A text stays as it is.
"""

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs/performance.md"
TABLES: dict[str, Any] = json.loads(PAGE.with_suffix(".json").read_text())
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n\n)(?:\|.*\n)*\n?")
_DASH = "\N{EN DASH}"
_UNITS = ((1, " s"), (1e-3, " ms"), (1e-6, " µs"))


def fill(page: str) -> str:
    """Return a page with its tables made anew."""
    return _PLACE.sub(lambda found: found[1] + _markdown(**TABLES[found[2]]) + "\n", page)


def _markdown(head: list[str], seconds: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head)]
    for name, *values in rows:
        lines.append([name, *(_cell(value, column in seconds) for value, column in zip(values, head[1:], strict=True))])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: float | list[float] | str | None, seconds: bool) -> str:
    if value is None or isinstance(value, str):
        return value or _DASH
    median, *ends = value if isinstance(value, list) else [value]
    scale, unit = next((known for known in _UNITS if median >= known[0]), _UNITS[-1]) if seconds else (1, "")
    spread = f" ({_DASH.join(_digits(end / scale) for end in ends)})" if ends else ""
    return _digits(median / scale) + unit + spread


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
