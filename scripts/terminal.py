"""Kill a rank of a real job, and draw the terminal: `python scripts/terminal.py` writes docs/assets/terminal.svg.

The job is examples/train_digits.py on two ranks of this machine. It needs the packages of `.[build,examples]`.
"""

import os
import re
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

import psutil

_ROOT = Path(__file__).resolve().parents[1]
_COMMAND = "cpudist launch --nproc 2 --max-restarts 3 -- examples/train_digits.py out"
_KILL_AFTER = "epoch 4:"
_COLUMNS, _CHARACTER, _LINE, _MARGIN = 60, 7.8, 18, 14  # the last three in pixels
_COLORS = (
    (r"\$ ", "#7ee787"),
    (r".*(ended|failed|starting again)", "#ffa657"),
    (r"cpudist: ", "#79c0ff"),
    ("", "#e6edf3"),
)


def run() -> Iterator[str]:
    """Yield the lines of the job, and kill its rank 1 after the fourth epoch."""
    with tempfile.TemporaryDirectory() as folder:
        words = _COMMAND.replace("examples/", f"{_ROOT}/examples/").split()
        job = subprocess.Popen(words, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert job.stdout is not None
        killed = False
        for line in job.stdout:
            yield line.replace(f"{_ROOT}/", "").replace(f"{folder}/", "").rstrip()
            if line.startswith(_KILL_AFTER) and not killed:
                killed = True
                os.kill(_rank(job.pid, "1"), signal.SIGKILL)
        if job.wait(60) or not killed:
            raise SystemExit(f"the job has ended with status {job.returncode}")


def _rank(launch: int, rank: str) -> int:
    """Return the process of a rank: a child of a rank has its variables, too, and comes after it."""
    for process in psutil.Process(launch).children(recursive=True):
        if process.environ().get("PMI_RANK") == rank and "train_digits.py" in " ".join(process.cmdline()):
            return process.pid
    raise SystemExit(f"there is no rank {rank}")


def shortened(lines: Iterable[str]) -> Iterator[str]:
    """Leave out the middle of a row of epochs, and lines that tell nothing new: a phone shows 60 columns."""
    kept = (line for line in lines if not re.match(r"cpudist: (optimize: |starting on|the job failed)|World", line))
    for are_epochs, row in groupby(kept, lambda line: line.startswith("epoch")):
        group = list(row)
        yield from [group[0], "…", group[-1]] if are_epochs and len(group) > 3 else group


def svg(lines: Sequence[str]) -> str:
    """Return lines of a terminal as a picture."""
    rows = [(row, color) for line in lines for row in textwrap.wrap(line, _COLUMNS) if (color := _color(line))]
    width, height = round(_COLUMNS * _CHARACTER + 2 * _MARGIN), len(rows) * _LINE + 2 * _MARGIN
    texts = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + number * _LINE - 5}" fill="{color}">{escape(row)}</text>'
        for number, (row, color) in enumerate(rows, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"\n'
        f'  font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117" stroke="#7d8590"/>\n{texts}\n</svg>\n'
    )


def _color(line: str) -> str:
    return next(color for pattern, color in _COLORS if re.match(pattern, line))


if __name__ == "__main__":
    picture = svg([f"$ {_COMMAND}", *shortened(run())])
    (_ROOT / "docs/assets/terminal.svg").write_text(picture, encoding="utf-8")
    print(picture)
