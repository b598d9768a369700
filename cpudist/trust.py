"""Protect the user's secrets, and folders with code to load, from other users of a machine."""

import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cpudist.errors import UserError

_SECRET = Path(".config", "cpudist", "secret")  # in the user's home folder

# Names of secrets, such as HF_TOKEN, hub.token, --apikey and accessKey, but not num_key_value_heads or pad_token_id.
_NAME = (
    r"(?:[\w.-]*(?:secret|passw(?:or)?d|passphrase|api[-_.]?key|credential)[\w.-]*"
    r"|[\w.-]*(?:token|key|auth(?:orization)?|pwd|sig(?:nature)?)\d*|(?:[\w.-]*[-_.])?(?:pass|pat|pw))"
)
_WHOLE_NAME = re.compile(_NAME, re.IGNORECASE)
_IN_A_WORD = re.compile(
    rf"((?<![\w.-]){_NAME}[\"']?\s*[=:]\s*|(?<!\S)-{_NAME}\s+"  # NAME=VALUE and "NAME": VALUE; --name VALUE in a text
    r"|:(?://)?(?=[^@]*@)).+"  # USER:PASSWORD@HOST and https://TOKEN@HOST
    r"|\b(?:hf|gh[a-z])_[a-z0-9]{20,}",  # tokens of Hugging Face and GitHub
    re.IGNORECASE | re.DOTALL,
)


def home() -> Path | None:
    """Return the user's home folder; None if neither HOME nor the user database names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def secret() -> str:
    """Return the user's secret from a private file in the home folder; the first process creates it."""
    folder = home()
    if folder is None:
        raise UserError("this user has no home folder to keep a secret in; set CPUDIST_TOKEN to one text for all ranks")
    path = folder / _SECRET
    try:
        if not path.exists():
            _make(path)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                reason = "it is another user's, or others may read it"
            elif found := file.read().strip():
                return found
            else:
                reason = "it is empty"
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be read"
    remedy = "mend or delete it, or set CPUDIST_TOKEN to one text for all ranks"
    raise UserError(f"cannot keep a secret in {path}: {reason}; {remedy}")


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command's words with *** instead of secrets, which are found by names such as --hub_token."""
    shown = [_IN_A_WORD.sub(r"\g<1>***", word) for word in words]
    named = [False, *(_WHOLE_NAME.fullmatch(word) is not None for word in words[:-1])]
    return ["***" if is_value else word for is_value, word in zip(named, shown, strict=bool(words))]


def new_file(path: Path) -> IO[str]:
    """Return a new text file to write, which only this user may read; raise OSError if it exists."""
    return open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w", encoding="utf-8")


def why_not_trusted(path: Path) -> str | None:
    """Return why a user other than this one and root could change `path`; None if no other user could."""
    if os.statvfs(path).f_flag & os.ST_RDONLY:  # a read-only image, which may be of a machine with other user ids
        return None
    status = path.stat()
    if status.st_uid not in (0, os.getuid()):
        return f"{path} belongs to another user, not to you or root"
    if status.st_mode & 0o022:
        return f"{path} can be written by other users (chmod go-w {path})"
    return None


def _make(path: Path) -> None:
    """Create the secret; if several processes do so, the first secret is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with new_file(written) as file:
        file.write(secrets.token_hex(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(written, path)
    finally:
        written.unlink()
