"""Facts about this host that must agree between the hosts of a job; `cpudist.hosts.check` runs it on each of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, get_args

import psutil

from cpudist.backends.ccl.compilation import find_built
from cpudist.compiler import find_compiler
from cpudist.doctor.versions import installed
from cpudist.errors import UserError
from cpudist.topology import measured_ranks
from cpudist.topology.identity import node_identity, resolved
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import Part, PlanOptions, make_plan
from cpudist.version import __version__


def main() -> None:
    """Print the facts as one line of JSON; arguments as for `facts`."""
    print(json.dumps(facts(*sys.argv[1:])))


def facts(folder: str, script: str = "", starter: str = "", probe: str = "") -> dict[str, Any]:
    """Return the fields of `cpudist.hosts.check.Facts`.

    Args:
        folder: the folder in which the job is to run.
        script: the script's path, which may be relative to the folder; empty where the job has none.
        starter: the name of the host that starts the job.
        probe: a file in the folder, as that host sees it; empty: do not look.
    """
    return {
        "identity": node_identity(),
        "python": platform.python_version(),
        "cpudist": __version__,
        "torch": installed("torch"),
        "ccl": _ccl(),
        "seconds": time.time(),
        "memory": psutil.virtual_memory().available,
        "folder": os.path.isdir(folder),
        "ranks": _ranks(),
        "script": _checksum(os.path.join(folder, script)) if script else None,
        "shared": not probe or os.path.exists(probe),
        "knows_us": not starter or bool(resolved(starter)),
    }


def _checksum(path: str) -> str | None:
    """Return a checksum of a file; None where it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


def _ccl() -> str:
    """Return why the ccl backend cannot be used; empty if it is compiled or can be."""
    try:
        if find_built() is None and find_compiler() is None:
            return "the ccl backend is not compiled, and there is no C++ compiler"
    except UserError as error:
        return str(error)
    return ""


def _ranks() -> dict[str, int]:
    """Return the number of ranks with one for each socket, NUMA node and L3 cache, and the default."""
    machine = this_machine()
    ranks = {part: len(make_plan(machine, PlanOptions(part)).ranks) for part in get_args(Part)}
    return {**ranks, "default": measured_ranks.load() or ranks["numa"]}
