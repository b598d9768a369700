"""Compare runs by their records: a table, loss curves, and the options that differ."""

import itertools
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.console import aligned, curve, names_of, number_of
from cpudist.errors import UserError
from cpudist.observability import product_speed
from cpudist.observability.rank_table import table as table_of_ranks

RECORD = "cpudist.json"  # the file of a run record, in its run's folder
_RANKS = 8  # Rows of the table of ranks.
_NAME_CELLS = 20  # Longer names of runs take several lines.


@dataclass(frozen=True)
class Run:
    """One run."""

    name: str  # the folder or the file that the user has named
    record: Mapping[str, Any]  # the run record

    def rows(self) -> dict[str, str]:
        """Return the cells of the run's column in `table`, by row name; a cell is empty if its figure is unknown."""
        get, loss = self.record.get, self.record.get("loss") or {}
        step, share = self.record.get("step_seconds") or {}, get("communication_share")
        median = step.get("median")
        ends = ["not finite" if one is None else f"{one:.4g}" for one in (loss.get("first"), loss.get("last"))]
        attempts = itertools.pairwise(get("attempts") or [])
        lost = sum(max(first + made - again, 0) for (first, made), (again, _) in attempts)
        transport = f" over {get('transport')}" if get("transport") else ""
        return {
            "ranks": f"{get('world_size', '')} on {names_of(get('hosts') or [])}",
            "backend": f"{get('backend', '')}{transport}",
            "computes in": get("dtype") or "",
            "optimized": ", ".join(get("optimizations") or []),
            "compression": (get("gradients") or {}).get("compress") or "",
            "ended": get("exit") or "",
            "restarts": str(get("restarts") or ""),
            "recomputed": number_of(lost, "step") if lost else "",
            "steps": str(get("steps") or ""),
            "samples/s": f"{get('samples_per_second'):.4g}" if get("samples_per_second") else "",
            "tokens/s": product_speed.text(self.record).replace(" tokens/s", ""),
            "step (p95)": f"{1000 * median:.0f} ms ({1000 * step['p95']:.0f})" if median else "",
            "shares": ", ".join(map(str, (get("shares") or {}).get("shares", ()))),
            "waits for messages": f"{100 * share:.0f} %" if share is not None else "",
            "loss": " to ".join(ends) if get("losses") else "",
            "curve": curve([loss for loss in get("losses") or () if loss is not None]),
        }


def read(path: Path) -> Run:
    """Read a run from its record, or from the folder that holds it; UserError if there is no record."""
    file = path / RECORD if path.is_dir() else path
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give a run's output folder, or its record") from None
    except ValueError:
        record = None
    if not isinstance(record, dict) or "world_size" not in record:
        raise UserError(f"{file} is not the record of a run; give a run's output folder, or its record")
    return Run(str(path), record)


def runs_in(path: Path) -> list[Path]:
    """Return the runs in a folder of runs, oldest first; for one run's folder or record, only `path`."""
    records = [] if (path / RECORD).exists() else [*path.glob(f"*/{RECORD}")]
    return [file.parent for file in sorted(records, key=lambda file: file.stat().st_mtime)] or [path]


def table(runs: Sequence[Run], width: int) -> str:
    """Return as many runs side by side as fit `width`, and the others below them."""
    for count in range(len(runs), 0, -1):
        lines = _side_by_side(runs[:count])
        if max(map(len, lines)) <= width:
            break
    return "\n".join(lines) + (f"\n\n{table(runs[count:], width)}" if runs[count:] else "")


def _side_by_side(runs: Sequence[Run]) -> list[str]:
    same_folder = len({os.path.dirname(run.name) for run in runs}) == 1 < len(runs)
    names = [os.path.basename(run.name) if same_folder else run.name for run in runs]
    head = itertools.zip_longest(*(textwrap.wrap(name, _NAME_CELLS) for name in names), fillvalue="")
    columns = [run.rows() for run in runs]
    told = [row for row in columns[0] if any(column[row] for column in columns)]
    return aligned([*(("", *line) for line in head), *((row, *(column[row] for column in columns)) for row in told)])


def waiting(run: Run) -> list[str]:
    """Return a table of the ranks' communication waits, limited to the ranks that make the others wait longest."""
    rows = run.record.get("waiting") or []
    return table_of_ranks(rows, _RANKS, ("rank", "host", "waits", "delays")) if rows else []


def differences(runs: Sequence[Run]) -> list[str]:
    """Return a line for each option that differs between the commands of the runs."""
    commands = [_options(run.record.get("command") or []) for run in runs]
    names = list(dict.fromkeys(name for command in commands for name in command))
    values = {name: [command.get(name, "not given") for command in commands] for name in names}
    return [f"{name}: {' | '.join(given)}" for name, given in values.items() if len(set(given)) > 1]


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the values of a command's options, by option name; words before the first option are "command"."""
    found: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = [value] if equals else []
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) or "given" for name, values in found.items()}
