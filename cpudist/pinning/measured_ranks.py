"""Load and store the number of ranks that `cpudist plan --measure` has found fastest on machines like this one.

The file is in the user's cache folder; the key is a description of the machine. Equal nodes with a shared home folder
share the number.
"""

from pathlib import Path

from cpudist import user_cache
from cpudist.topology.machine import cpu_model, this_machine

_FILE = "ranks.json"


def load() -> int | None:
    """Return the number of ranks for this machine; None if it was not measured."""
    found = user_cache.read(_FILE).get(_description())
    return found if isinstance(found, int) and found > 0 else None


def save(ranks: int) -> Path:
    """Store the number of ranks for this machine, and return the file."""
    return user_cache.write(_FILE, {**user_cache.read(_FILE), _description(): ranks})


def _description() -> str:
    """Return the key of the stored number: the usable part of this machine, since the fastest number depends on it."""
    usable = this_machine().usable
    nodes = len({core.numa_node for core in usable.cores})
    return f"{cpu_model()}, {len(usable.cores)} cores, {nodes} NUMA nodes"
