"""Facts about this host that must agree between the hosts of a job, as one line of JSON.

`cpudist.launch.check` runs `main` on every host and compares.
"""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

import psutil

from cpudist.backends.ccl.build import find_built
from cpudist.backends.ccl.toolchain import find_compiler
from cpudist.errors import UserError
from cpudist.machine.description import this_machine
from cpudist.machine.identity import node_identity
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Part, Wishes
from cpudist.version import __version__


def main(folder: str) -> None:
    """Print the facts; `folder` is where the job is to run."""
    print(json.dumps(facts(folder)))


def facts(folder: str) -> dict[str, Any]:
    """What `cpudist.launch.check.Facts` holds."""
    return {
        "identity": node_identity(),
        "python": platform.python_version(),
        "cpudist": __version__,
        "torch": _installed("torch"),
        "ccl": _ccl(),
        "seconds": time.time(),
        "memory": psutil.virtual_memory().available,
        "folder": os.path.isdir(folder),
        "ranks": _ranks(),
    }


def _ccl() -> str:
    """Empty where the ccl backend is compiled or can be; otherwise why it cannot be used."""
    try:
        if find_built() is None and find_compiler() is None:
            return "the ccl backend is not compiled, and there is no C++ compiler"
    except UserError as error:
        return str(error)
    return ""


def _ranks() -> dict[str, int]:
    """How many ranks the plan has with one for each socket, NUMA node and L3 cache."""
    machine = this_machine()
    return {part: len(make_plan(machine, Wishes(part)).ranks) for part in get_args(Part)}


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
