"""Compare runs by their records and Trainer's logs: a table, loss curves, and the options that differ."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist.console import aligned, curve, names_of, number_of
from cpudist.errors import UserError
from cpudist.observability.rank_table import table as table_of_ranks

_RECORD, _LOG = "cpudist.json", "trainer_state.json"
_RANKS = 8  # Rows of the table of ranks.

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Run:
    """One run: its record, and its losses.

    Attributes:
        name: the folder or the file that the user has named.
        record: the run record.
        losses: steps and losses as Trainer has logged them; empty where it has saved no log.
    """

    name: str
    record: Mapping[str, Any]
    losses: Points

    def rows(self) -> dict[str, str]:
        """Return the cells of the run's column in `table`, by row name; empty if the record has no such figure."""
        get, loss = self.record.get, self.record.get("loss") or {}
        step, share = self.record.get("step_seconds") or {}, get("communication_share")
        median = step.get("median")
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
            "restarts": f"{get('restarts')}" if get("restarts") else "",
            "recomputed": number_of(lost, "step") if lost else "",
            "steps": f"{get('steps')}" if get("steps") else "",
            "samples/s": f"{get('samples_per_second'):.4g}" if get("samples_per_second") else "",
            "step (p95)": f"{1000 * median:.0f} ms ({1000 * step['p95']:.0f})" if median else "",
            "waits for messages": f"{100 * share:.0f} %" if share is not None else "",
            "loss": f"{loss['first']:.4g} to {loss['last']:.4g}" if loss.get("last") is not None else "",
            "curve": curve([loss for _, loss in self.losses]),
        }


def read(path: Path) -> Run:
    """Read a run from its record, or from the folder that holds it.

    Raises:
        UserError: there is no such file, or it is not a run record.
    """
    file = path / _RECORD if path.is_dir() else path
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror}); give a run's output folder, or its record") from None
    except ValueError:
        record = None
    if not isinstance(record, dict) or "world_size" not in record:
        raise UserError(f"{file} is not the record of a run; give a run's output folder, or its record")
    return Run(str(path), record, _losses(file.parent))


def table(runs: Sequence[Run], width: int) -> str:
    """Return the runs side by side, or one below the other where they do not fit `width`."""
    columns = [{"": run.name, **run.rows()} for run in runs]
    told = [row for row in columns[0] if any(column[row] for column in columns)]
    lines = aligned([(row, *(column[row] for column in columns)) for row in told])
    if max(map(len, lines)) > width and len(runs) > 1:
        return "\n\n".join(table([run], width) for run in runs)
    return "\n".join(lines)


def waiting(run: Run) -> list[str]:
    """Return a table of the ranks' communication waits, limited to the ranks that make the others wait longest."""
    rows = run.record.get("waiting") or []
    return table_of_ranks(rows, _RANKS, ("rank", "host", "waits", "delays")) if rows else []


def differences(runs: Sequence[Run]) -> list[str]:
    """Return a line for each option that differs between the commands of the runs."""
    commands = [_options(run.record.get("command") or []) for run in runs]
    names = list(dict.fromkeys(name for command in commands for name in command))
    lines = []
    for name in names:
        values = [command.get(name, "not given") for command in commands]
        if len(set(values)) > 1:
            lines.append(f"{name}: {' | '.join(values)}")
    return lines


def _losses(folder: Path) -> Points:
    """Return the losses of Trainer's newest log in `folder`, or in the checkpoints there."""
    logs = sorted([*folder.glob(_LOG), *folder.glob(f"checkpoint-*/{_LOG}")], key=lambda file: file.stat().st_mtime)
    if not logs:
        return []
    try:
        history = json.loads(logs[-1].read_text(encoding="utf-8"))["log_history"]
        return [(entry["step"], float(entry["loss"])) for entry in history if "loss" in entry]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the values of a command's options, by option name; its other words have the name "command"."""
    found: dict[str, list[str]] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = [value] if equals else []
        else:
            found.setdefault(name, []).append(word)
    return {name: " ".join(values) or "given" for name, values in found.items()}
