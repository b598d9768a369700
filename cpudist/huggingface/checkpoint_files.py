"""The files of Trainer's checkpoints: which ones are complete, and what cpudist adds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cpudist.checkpoints import manifest
from cpudist.checkpoints.folders import numbered

# Beside Trainer's files: the batch geometry, the names of the run, the number of the training, all files' checksums.
WORLD = "world.json"
HOSTS = "hosts.pt"  # what compression has lost of the gradients (`error_feedback`)
STATE = "trainer_state.json"  # the last file that an unpatched Trainer writes
_SENTINEL = "checkpoint-is-incomplete.txt"  # transformers 5 leaves it while it saves on SIGTERM


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """Return the complete checkpoints in `folder` by their steps, the newest last."""
    found = numbered(folder).items()
    return {step: path for step, path in found if (path / STATE).is_file() and not (path / _SENTINEL).exists()}


def read_world(checkpoint: Path) -> dict[str, Any] | None:
    """Return what WORLD says in `checkpoint`: nothing if it was made without cpudist; None if WORLD is damaged."""
    try:
        world: dict[str, Any] = json.loads((checkpoint / WORLD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
    return world


def write_world(folder: Path, world: Mapping[str, Any], pause: Callable[[], None] = lambda: None) -> None:
    """Write WORLD, the last file of a checkpoint, into `folder`, with the checksums of all others.

    `pause` is called after each block of a file that is read.
    """
    own = folder / WORLD  # which another rank may be writing, too
    files = manifest.checksums(folder, [path for path in folder.rglob("*") if path.is_file() and path != own], pause)
    own.write_text(json.dumps({**world, "files": files}) + "\n", encoding="utf-8")


def damage(checkpoint: Path, part: int, parts: int) -> str | None:
    """Return what is wrong with a part of the files of a checkpoint, as `manifest.damage` does.

    Checkpoints made without cpudist, or by a version that wrote no checksums, pass.
    """
    world = read_world(checkpoint)
    if world is None:
        return f"{WORLD} cannot be read"
    return manifest.damage(checkpoint, manifest.files_in(world), part, parts) if "files" in world else None


def adopt(folder: Path, written: Path) -> None:
    """Move files into `written` that a class derived from Trainer has saved straight into `folder`.

    If `folder` has a state, it is a checkpoint of an earlier run, and stays as it is.
    """
    if folder.is_dir() and not (folder / STATE).exists():
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has moved it
                    path.rename(written / path.name)
