"""The manifest, the last file of a checkpoint: its step, its run, and a checksum of every other file.

Checkpoints of Trainer have a manifest, too. `Checkpoints` and `save` never replace a folder of files without one.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cpudist import typed_json

FILE = "checkpoint.json"
BLOCK = 1 << 22  # bytes to read or write at once


@dataclass(frozen=True)
class Manifest:
    """The content of FILE."""

    step: int | None  # the step after which the checkpoint was saved; None if it has no step
    world_size: int  # the number of ranks that have saved it
    runs: tuple[str, ...]  # the names of the run
    trainer: Mapping[str, Any]  # the batch geometry and number of Trainer's training
    files: Mapping[str, tuple[int, str]]  # each file with its size in bytes and its CRC-32


def seal(
    folder: Path,
    step: int | None,
    world_size: int,
    runs: Sequence[str],
    trainer: Mapping[str, Any] | None = None,
    known: Mapping[str, tuple[int, str]] | None = None,
) -> None:
    """Write FILE into `folder` after all other files; `known` has checksums that are already computed."""
    files = dict(known or {})
    others = [path for path in folder.rglob("*") if path.is_file() and path != folder / FILE]
    files |= checksums(folder, [path for path in others if str(path.relative_to(folder)) not in files])
    said = Manifest(step, world_size, tuple(runs), trainer or {}, files)
    (folder / FILE).write_text(json.dumps(asdict(said)) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest | None:
    """Return the content of FILE in `folder`; an empty Manifest if there is no FILE, None if FILE is damaged."""
    try:
        return typed_json.read(Manifest, json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Manifest(None, 0, (), {}, {})
    except ValueError:
        return None


def checksums(folder: Path, paths: Iterable[Path]) -> dict[str, tuple[int, str]]:
    """Return size and checksum of each file, by its path in `folder`."""
    return {str(path.relative_to(folder)): _checksum(path) for path in paths}


def damage(folder: Path, part: int = 0, parts: int = 1) -> str | None:
    """Return the first fault in part `part` of `parts` of a checkpoint's files; None without faults or without FILE."""
    said = read(folder)
    if said is None:
        return f"{FILE} cannot be read"
    for name, (size, checksum) in sorted(said.files.items())[part::parts]:
        try:
            found_size, found = _checksum(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found_size != size:
            return f"{name} has {found_size} bytes instead of {size}"
        if found != checksum:
            return f"{name} has another checksum than when it was written"
    return None


def _checksum(path: Path) -> tuple[int, str]:
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
    return size, f"{checksum:08x}"
