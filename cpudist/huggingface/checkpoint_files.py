"""Checkpoints as folders on a disk: `checkpoint-N` is complete or not there, whatever is killed and whenever.

What is being written, or being deleted, lies in the folder `.incomplete` beside them, which nobody resumes from; a
rename, which a file system does as a whole, brings a checkpoint out of it or into it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from pathlib import Path

INCOMPLETE = ".incomplete"
WORLD = "world.json"  # beside Trainer's files: what made the checkpoint
_RUN = ".run"  # beside the checkpoints: the name of the run, which its restarts keep
_STATE = "trainer_state.json"  # what a Trainer that nobody has patched writes last
_SENTINEL = "checkpoint-is-incomplete.txt"  # what transformers 5 leaves while it saves on SIGTERM
_PROBE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # what some file systems say of a folder


def checkpoints(folder: str | Path) -> dict[int, Path]:
    """The complete checkpoints in `folder`, by their steps, the newest last."""
    found = {}
    for path in Path(folder).glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and (path / _STATE).is_file() and not (path / _SENTINEL).exists():
            found[int(step)] = path
    return dict(sorted(found.items()))


def begin_run(folder: Path, run: str) -> None:
    """From now on checkpoints in `folder` are made by the run of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_RUN}.{secrets.token_hex(8)}"
    new.write_text(run, encoding="utf-8")
    new.rename(folder / _RUN)


def run_of(folder: Path) -> str | None:
    """The run that makes checkpoints in `folder`; None if nobody has said."""
    try:
        return (folder / _RUN).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def run_that_made(checkpoint: Path) -> str | None:
    """The run that has made `checkpoint`; None if that is not known."""
    try:
        run: str | None = json.loads((checkpoint / WORLD).read_text(encoding="utf-8")).get("run")
    except FileNotFoundError:  # made without cpudist
        return None
    return run


def sync(folder: Path) -> None:
    """Have the disk hold what `folder` holds, so that it survives a loss of power."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def adopt(folder: Path, written: Path) -> None:
    """Move into `written` what has been saved past it into `folder`, the place where it will be brought out.

    Classes derived from Trainer do so. If `folder` has a state, it is a checkpoint of an earlier run, and left alone.
    """
    if folder.is_dir() and not (folder / _STATE).exists():
        for path in folder.iterdir():
            if not (written / path.name).exists():
                with contextlib.suppress(FileNotFoundError):  # another rank has
                    path.rename(written / path.name)


def publish(written: Path, folder: Path) -> Path:
    """Bring the checkpoint `written`, which is on the disk, out into `folder`; returns where it is then.

    Where several ranks do, such as one of every host on a disk that they share, the first one has done it for all.
    """
    target, own = folder / written.name, written.with_name(f"{written.name}.{secrets.token_hex(8)}")
    try:
        written.rename(own)
    except FileNotFoundError:
        return target
    # There may be one of an earlier run, which went on from an older checkpoint or was begun anew.
    aside = _move_aside(target) if target.exists() else None
    own.rename(target)
    _sync(folder)
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)
    _tidy(written.parent)
    return target


def delete(folder: str | Path, ignore_errors: bool = False) -> None:
    """In the place of `shutil.rmtree`: a folder that is killed while it is deleted is no checkpoint any more."""
    incomplete = Path(folder).parent / INCOMPLETE
    try:
        aside = _move_aside(Path(folder))
    except OSError:
        _tidy(incomplete)
        if ignore_errors:
            return
        raise
    shutil.rmtree(aside, ignore_errors=ignore_errors)
    _tidy(incomplete)


def clear(folder: Path) -> None:
    """Remove what was being written to or deleted from `folder` when earlier jobs were killed."""
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
    """Rename `folder` away; returns the folder that it is in then, alone."""
    (folder.parent / INCOMPLETE).mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="old-", dir=folder.parent / INCOMPLETE))
    try:
        folder.rename(aside / folder.name)
    except OSError:
        aside.rmdir()
        raise
    return aside


def _tidy(folder: Path) -> None:
    """Remove `folder`, which is `.incomplete` or in it, and the former, if they are empty."""
    with contextlib.suppress(OSError):  # there is more in it
        folder.rmdir()
        if folder.name != INCOMPLETE:
            folder.parent.rmdir()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC or not path.is_dir():
            raise
    finally:
        os.close(file)
