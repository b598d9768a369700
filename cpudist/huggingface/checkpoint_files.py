"""Checkpoints as folders on a disk: `checkpoint-N` is complete or not there, whatever is killed and whenever.

What is being written, or being deleted, lies in the folder `.incomplete` beside them, which nobody resumes from; a
rename, which a file system does as a whole, brings a checkpoint out of it or into it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

INCOMPLETE = ".incomplete"
_STATE = "trainer_state.json"  # what a Trainer that nobody has patched writes last
_SENTINEL = "checkpoint-is-incomplete.txt"  # what transformers 5 leaves while it saves on SIGTERM
_PROBE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """The complete checkpoints in `folder`, by their steps, the newest last."""
    found = {}
    for path in Path(folder).glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and (path / _STATE).is_file() and not (path / _SENTINEL).exists():
            found[int(step)] = path
    return dict(sorted(found.items()))


def sync(folder: Path) -> None:
    """Have the disk hold what `folder` holds, so that it survives a loss of power."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def publish(written: Path, folder: Path) -> Path:
    """Bring the checkpoint `written`, which is on the disk, out into `folder`; returns where it is then."""
    target = folder / written.name
    if target.exists():  # of an earlier run, which went on from an older checkpoint or was begun anew
        _move_aside(target)
    written.rename(target)
    _sync(folder)
    _tidy(folder)
    return target


def delete(folder: str | Path, ignore_errors: bool = False) -> None:
    """In the place of `shutil.rmtree`: a folder that is killed while it is deleted is no checkpoint any more."""
    shutil.rmtree(_move_aside(Path(folder)), ignore_errors=ignore_errors)
    _tidy(Path(folder).parent)


def clear(folder: Path) -> None:
    """Remove what was being written to or deleted from `folder` when its job was killed."""
    shutil.rmtree(folder / INCOMPLETE, ignore_errors=True)


def why_full(error: BaseException | None, folder: Path) -> str | None:
    """What there is to say of the disk under `folder` if it is why writing failed with `error`; None if it is not.

    Not all errors say so: torch's own has neither a number nor a reason.
    """
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL) or os.strerror(errno.ENOSPC) in str(error):
            return _describe(folder)
        error = error.__cause__ or error.__context__
    probe = folder / f".probe.{os.getpid()}"
    try:
        with probe.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as problem:
        return _describe(folder) if problem.errno in _FULL else None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return None


def _describe(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    mount = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_mount())
    free, total = (f"{size / 2**20:,.0f} MiB" for size in (usage.free, usage.total))
    return f"the disk at {mount} is full ({free} of {total} free, or a quota is used up)"


def _move_aside(folder: Path) -> Path:
    aside = folder.parent / INCOMPLETE / f"old-{folder.name}"
    aside.parent.mkdir(exist_ok=True)
    if aside.exists():
        shutil.rmtree(aside)
    return folder.rename(aside)


def _tidy(folder: Path) -> None:
    with contextlib.suppress(OSError):  # there is more in it
        (folder / INCOMPLETE).rmdir()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
