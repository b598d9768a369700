"""Checkpoints as folders on a disk. Each is complete or absent, even if a process is killed at any time.

A checkpoint that is being written or deleted lies in the folder `.incomplete` beside the others. Nothing resumes from
that folder. A rename, which is atomic in a file system, moves a checkpoint out of that folder or into it.
"""

import contextlib
import errno
import glob
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cpudist.console import size
from cpudist.errors import expect

INCOMPLETE = ".incomplete"
PREFIX = "checkpoint-"
_REPLACED = "replaced-"
_PROBE_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # errors of file systems that cannot sync a folder


@contextlib.contextmanager
def probe(folder: str | Path) -> Iterator[str]:
    """Yield the path of a new file in `folder`, to check that hosts share `folder`; empty if no file can be written.

    The file's name is unique, because NFS may report a name as missing after an earlier look-up.
    """
    with contextlib.ExitStack() as stack:
        name = ""
        with contextlib.suppress(OSError):
            name = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".cpudist-", dir=folder)).name
        yield name


def path_of(folder: str | Path) -> Path:
    """Return the absolute path of a folder that a user has given; raise UserError if it is no path."""
    expect("the folder", folder, str, os.PathLike)
    return Path(folder).absolute()


def numbered(folder: str | Path) -> dict[int, Path]:
    """Return the folders `checkpoint-N` in `folder`, complete or not, by their steps, the newest last."""
    found = {}
    for path in Path(folder).glob(f"{PREFIX}*"):
        step = path.name.removeprefix(PREFIX)
        if step.isdecimal() and path.is_dir():
            found[int(step)] = path
    return dict(sorted(found.items()))


def rotate(found: Iterable[Path], keep: int, saved: Sequence[Path], best: Path | None = None) -> None:
    """Delete the oldest checkpoints until `keep` are left, but neither the newest nor the best.

    Modification times are not used, because clocks of hosts differ and copying changes the times.

    Args:
        found: the checkpoints, in the order of their steps.
        saved: checkpoints that this process has saved, in the order of saving. All others in `found` count as older.
    """
    ordered = sorted(found, key=lambda path: saved.index(path) if path in saved else -1)
    kept = {*ordered[-1:], *([best] if best in ordered else [])}
    superfluous = len(ordered) - max(keep, len(kept))
    for path in [path for path in ordered if path not in kept][: max(superfluous, 0)]:
        delete(path, ignore_errors=True)


def restore(folder: Path, name: str = "*") -> None:
    """Restore checkpoints that a killed process had moved aside to replace them; call this before the job saves."""
    for aside in (folder / INCOMPLETE).glob(f"{_REPLACED}*/{_pattern(name)}"):
        if not (folder / aside.name).exists():
            with contextlib.suppress(OSError):  # another rank has done it
                aside.rename(folder / aside.name)


def sync(folder: Path) -> None:
    """Sync the content of `folder` to the disk, so that it survives a power failure."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def publish(written: Path, folder: Path) -> None:
    """Move the complete checkpoint `written` into `folder`; if several ranks call this, the first one moves it."""
    target, own = folder / written.name, written.with_name(f"{written.name}.{secrets.token_hex(8)}")
    try:
        written.rename(own)
    except FileNotFoundError:  # another rank has moved it
        return
    # A checkpoint of this step may exist, from an earlier run or from before a restart of this run. If the process is
    # killed between the two renames, `restore` brings it back.
    replaced = _move_aside(target, _REPLACED) if target.exists() else None
    own.rename(target)
    _sync(folder)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)
    _tidy(written.parent)


def delete(folder: str | Path, ignore_errors: bool = False) -> None:
    """Delete a checkpoint like `shutil.rmtree`. A kill during it leaves nothing that looks like a checkpoint."""
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


def clear(folder: Path, name: str = "*") -> None:
    """Remove the incomplete checkpoints (all, or only `name`) that killed jobs have left in `folder`."""
    restore(folder, name)
    for left in (folder / INCOMPLETE).glob("*" if name == "*" else f"*/{_pattern(name)}"):
        shutil.rmtree(left, ignore_errors=True)
        _tidy(left.parent)


def _pattern(name: str) -> str:
    return name if name == "*" else glob.escape(name)  # a folder's name may have brackets


def why_full(error: BaseException | None, folder: Path) -> str | None:
    """Return a description of the disk under `folder` if `error` occurred because it is full, else None."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in _FULL) or os.strerror(errno.ENOSPC) in str(error):
            return _describe(folder)
        error = error.__cause__ or error.__context__
    try:  # torch's own errors have neither an errno nor a cause, so write a probe
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(_PROBE_BYTES))
            os.fsync(file.fileno())
    except OSError as problem:
        return _describe(folder) if problem.errno in _FULL else None
    return None


def _describe(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    mount = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_mount())
    free = f"{size(usage.free)} of {size(usage.total)} free, or a quota is used up"
    return f"the disk at {mount} is full ({free}) on {socket.gethostname()}"


def _move_aside(folder: Path, prefix: str = "old-") -> Path:
    """Move `folder` into a new folder in `.incomplete`; return the new folder."""
    (folder.parent / INCOMPLETE).mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent / INCOMPLETE))
    try:
        folder.rename(aside / folder.name)
    except OSError:
        aside.rmdir()
        raise
    return aside


def _tidy(folder: Path) -> None:
    """Remove `folder` if it is empty, then `.incomplete`; `folder` is `.incomplete` or a folder in it."""
    with contextlib.suppress(OSError):  # the folder is not empty
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
