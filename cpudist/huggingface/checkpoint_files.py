"""The files of Trainer's checkpoints: the complete ones, and cpudist's additions."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cpudist.checkpoints.folders import numbered

HOSTS = "hosts.pt"  # next to Trainer's files: the part of the gradients that compression has lost (`error_feedback`)
STATE = "trainer_state.json"  # the last file that an unpatched Trainer writes
_SENTINEL = "checkpoint-is-incomplete.txt"  # transformers 5 leaves it while it saves on SIGTERM


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by their steps, the newest last."""
    found = numbered(folder).items()
    return {step: path for step, path in found if (path / STATE).is_file() and not (path / _SENTINEL).exists()}


def adopt(folder: Path, written: Path) -> None:
    """Move files into `written` that a class derived from Trainer has saved straight into `folder`.

    If `folder` has a state, it is a checkpoint of an earlier run, and stays as it is.
    """
    if folder.is_dir() and not (folder / STATE).exists():
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                    path.rename(written / path.name)
