"""The files of Trainer's checkpoints: which ones are complete, and what cpudist adds."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from cpudist.checkpoints.folders import numbered

WORLD = "world.json"  # beside Trainer's files: the batch geometry, the names of the run and the number of the training
HOSTS = "hosts.pt"  # what `local_steps.kept` keeps of the communication between hosts
STATE = "trainer_state.json"  # the last file that an unpatched Trainer writes
_SENTINEL = "checkpoint-is-incomplete.txt"  # transformers 5 leaves it while it saves on SIGTERM


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by their steps, the newest last."""
    found = numbered(folder).items()
    return {step: path for step, path in found if (path / STATE).is_file() and not (path / _SENTINEL).exists()}


def runs_of(checkpoint: Path) -> list[str]:
    """Return the names of the run that has saved `checkpoint`; none if it was made without cpudist."""
    return list((read_world(checkpoint) or {}).get("runs", ()))


def training_of(checkpoint: Path) -> int:
    """Return the number of the training that has saved `checkpoint` among those of its run in the same folder."""
    return int((read_world(checkpoint) or {}).get("training", 0))


def read_world(checkpoint: Path) -> dict[str, Any] | None:
    """Return what WORLD says in `checkpoint`; None if it was made without cpudist."""
    try:
        world: dict[str, Any] = json.loads((checkpoint / WORLD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return world


def adopt(folder: Path, written: Path) -> None:
    """Move files into `written` that a class derived from Trainer has saved straight into `folder`.

    If `folder` has a state, it is a checkpoint of an earlier run, and stays as it is.
    """
    if folder.is_dir() and not (folder / STATE).exists():
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                    path.rename(written / path.name)
