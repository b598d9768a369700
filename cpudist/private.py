"""Keep other users of a machine from the user's secret, and from folders with code to load."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from cpudist.errors import UserError

_SECRET = Path(".config", "cpudist", "secret")  # in the user's home folder


def home() -> Path | None:
    """Return the user's home folder; None where neither HOME nor the list of users names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def secret() -> str:
    """Return the user's secret, which a file in the home folder keeps; the first process makes it.

    Raises:
        UserError: it cannot be kept there, or others can read it.
    """
    folder = home()
    if folder is None:
        raise UserError("this user has no home folder to keep a secret in; set CPUDIST_TOKEN to one text for all ranks")
    path = folder / _SECRET
    try:
        if not path.exists():
            _make(path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            status = os.fstat(file.fileno())
            if status.st_uid == os.getuid() and not status.st_mode & 0o077:
                return file.read()
        reason = "it is another user's, or others may read it"
    except OSError as error:
        reason = error.strerror or "it cannot be read"
    raise UserError(
        f"cannot keep a secret in {path}: {reason}; mend that, or set CPUDIST_TOKEN to one text for all ranks"
    )


def why_not_trusted(path: Path) -> str | None:
    """Return why a user other than this one and root could change `path`; None where none could."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # an image, whose owners have other numbers here
        return None
    status = path.stat()
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to another user, not to you or root"
    if status.st_mode & 0o022:
        return f"{path} can be written by other users (chmod go-w {path})"
    return None


def _make(path: Path) -> None:
    """Make the secret; where several processes do so, the first secret is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        written.unlink()
