"""The last file of a checkpoint: which step and run it is of, and a checksum of every other file.

A folder with this file is a checkpoint of ours; other folders are left alone.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE = "checkpoint.json"
BLOCK = 1 << 22  # bytes to read or write at once


@dataclass(frozen=True)
class Manifest:
    """What FILE says.

    Attributes:
        step: the step after which the checkpoint was saved; None where it has none.
        world_size: how many ranks have saved it.
        runs: the names of their run.
        files: each file with its size in bytes and its CRC-32.
    """

    step: int | None
    world_size: int
    runs: list[str]
    files: dict[str, tuple[int, str]]


def write(folder: Path, manifest: Manifest) -> None:
    """Write FILE into `folder`."""
    (folder / FILE).write_text(json.dumps(asdict(manifest)) + "\n", encoding="utf-8")


def read(folder: Path) -> Manifest | None:
    """Return what FILE in `folder` says; None where it is damaged.

    Raises:
        FileNotFoundError: there is none, so the folder is no checkpoint of ours.
    """
    try:
        said = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Manifest(said["step"], int(said["world_size"]), list(said["runs"]), files_in(said))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def files_in(said: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Return the entry "files" of what a JSON file says, with the types that `checksums` gives it."""
    return {str(name): (int(size), str(checksum)) for name, (size, checksum) in said["files"].items()}


def checksums(
    folder: Path, paths: Iterable[Path], pause: Callable[[], None] = lambda: None
) -> dict[str, tuple[int, str]]:
    """Return size and checksum of each file, by its path in `folder`; `pause` is called after each block."""
    return {str(path.relative_to(folder)): _checksum(path, pause) for path in paths}


def damage(folder: Path, files: Mapping[str, tuple[int, str]], part: int = 0, parts: int = 1) -> str | None:
    """Compare the files of a checkpoint with their checksums; return the first difference in words, None without one.

    Args:
        folder: the checkpoint.
        files: what `checksums` has returned when it was written.
        part, parts: which share of the files to compare: part 0 of 1 is all of them.
    """
    for name, (size, checksum) in sorted(files.items())[part::parts]:
        try:
            found_size, found = _checksum(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found_size != size:
            return f"{name} has {found_size} bytes instead of {size}"
        if found != checksum:
            return f"{name} has another checksum than when it was written"
    return None


def _checksum(path: Path, pause: Callable[[], None] = lambda: None) -> tuple[int, str]:
    size = checksum = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            checksum = zlib.crc32(block, checksum)
            pause()
    return size, f"{checksum:08x}"
