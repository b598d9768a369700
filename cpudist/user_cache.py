"""Files in the user's cache folder, in which a command stores results for later commands and jobs."""

import json
import os
from pathlib import Path
from typing import Any

from cpudist.errors import UserError
from cpudist.trust import home


def cache_folder() -> Path | None:
    """Return cpudist's folder in the user's cache folder; None for a user without a home folder."""
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "cpudist"
    at_home = home()
    return None if at_home is None else at_home / ".cache" / "cpudist"


def read(name: str) -> dict[str, Any]:
    """Return the values that `write` has stored; empty if the file is missing or damaged."""
    folder = cache_folder()
    try:
        found = {} if folder is None else json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(name: str, values: dict[str, Any]) -> Path:
    """Store values as JSON, and return the file. Readers see the old values or the new values."""
    folder = cache_folder()
    if folder is None:
        raise UserError(f"this user has no home folder to keep {name} in; set XDG_CACHE_HOME to a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{name}.{os.getpid()}"
        new.write_text(json.dumps(values, indent=2), encoding="utf-8")
        return new.replace(folder / name)
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that can be written"
        raise UserError(f"cannot keep {name} in {folder} ({error.strerror}); {remedy}") from None
