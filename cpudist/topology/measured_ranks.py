"""The number of ranks that was fastest on machines like this one, as `cpudist plan --measure` has found it.

It is kept in the user's cache folder, by the machine's description. So nodes of one kind that share a home folder share
the number.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from cpudist.topology.machine import cpu_model, this_machine


def load() -> int | None:
    """Return the number of ranks for this machine; None where none was measured."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))[_description()]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


def save(ranks: int) -> Path:
    """Store the number of ranks for this machine, and return the file.

    Raises:
        OSError: the file cannot be written.
    """
    file, known = _file(), {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({**known, _description(): ranks}, indent=2), encoding="utf-8")
    new.replace(file)
    return file


def _file() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "cpudist" / "ranks.json"


def _description() -> str:
    """Describe what this process may use of the machine: half of it needs another number of ranks."""
    usable = this_machine().usable
    nodes = len({core.numa_node for core in usable.cores})
    return f"{cpu_model()}, {len(usable.cores)} cores, {nodes} NUMA nodes"
