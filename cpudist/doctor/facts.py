"""What this host has, which must agree between the hosts of a job, and whether it works.

`cpudist.hosts.check` runs `main` on every host and compares the answers. Before a job starts again whose failure may
be a host's, each host tries what a job needs: to write a file, to fill memory, and a collective of two processes.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
from typing import Any, get_args

import psutil

from cpudist.backends.ccl.compilation import find_built
from cpudist.backends.ccl.toolchain import find_compiler
from cpudist.doctor.versions import installed
from cpudist.errors import UserError
from cpudist.topology.identity import free_port, node_identity
from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import Part, PlanOptions, make_plan
from cpudist.version import __version__

_MEMORY, _FILE = 64 << 20, 1 << 20  # bytes
_SECONDS = 45.0
_LAUNCHERS = ("SLURM_", "PMI", "OMPI_", "CPUDIST_")  # what `cpudist launch` inherits is not for these ranks

_RANK = """\
import sys
sys.path[:1] = {path!r}
import torch
import cpudist
cpudist.init({backend!r}, timeout={seconds}, pin=False)
numbers = torch.arange(1 << 20, dtype=torch.float32)
torch.distributed.all_reduce(numbers)
assert torch.equal(numbers, 2 * torch.arange(1 << 20, dtype=torch.float32)), "a sum is wrong"
cpudist.shutdown()
"""


def main(folder: str, tries: bool) -> None:
    """Print the facts as one line of JSON.

    Args:
        folder: the folder in which the job is to run.
        tries: whether disk, memory and a collective are tried, which takes seconds.
    """
    print(json.dumps({**facts(folder), "failure": failure(folder) if tries else ""}))


def facts(folder: str) -> dict[str, Any]:
    """Return the fields of `cpudist.hosts.check.Facts`, without `failure`."""
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
    }


def _ccl() -> str:
    """Return why the ccl backend cannot be used; empty if it is compiled or can be."""
    try:
        if find_built() is None and find_compiler() is None:
            return "the ccl backend is not compiled, and there is no C++ compiler"
    except UserError as error:
        return str(error)
    return ""


def _ranks() -> dict[str, int]:
    """Return the number of ranks with one for each socket, NUMA node and L3 cache."""
    machine = this_machine()
    return {part: len(make_plan(machine, PlanOptions(part)).ranks) for part in get_args(Part)}


def failure(folder: str) -> str:
    """Return what does not work on this host for a job in `folder`, in words; empty if all does."""
    pattern = secrets.token_bytes(1 << 16)
    if bytes(pattern * (_MEMORY >> 16))[-len(pattern) :] != pattern:
        return "reads another content from its memory than it has written"
    for place in (folder, *_temporary()):
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(pattern * (_FILE >> 16))
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                if file.read() != pattern * (_FILE >> 16):
                    return f"reads another content from {place} than it has written"
        except OSError as error:
            if os.access(place, os.W_OK):  # otherwise the job does without, too
                return f"cannot write to {place}: {error.strerror}"
    return _collective()


def _temporary() -> list[str]:
    try:
        return [tempfile.gettempdir()]
    except FileNotFoundError:  # none can be written
        return []


def _collective() -> str:
    backend = "gloo" if find_built() is None else "ccl"
    program = _RANK.format(path=[entry for entry in sys.path if entry], backend=backend, seconds=_SECONDS)
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CPUDIST_TOKEN": secrets.token_hex(16)}
    job |= {name: os.environ[name] for name in ("CPUDIST_CACHE",) if name in os.environ}
    ranks: list[subprocess.Popen[str]] = []
    for number in ("0", "1"):
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        command, env = [sys.executable, "-c", program], {**own, **job, **place, "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    deadline = time.monotonic() + _SECONDS
    try:
        said = [rank.communicate(timeout=max(deadline - time.monotonic(), 0.1))[1] for rank in ranks]
    except subprocess.TimeoutExpired:
        return f"does not end a collective of two processes ({backend}) within {_SECONDS:g} s"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, errors in zip(ranks, said, strict=True):
        if rank.returncode:
            last = "".join(errors.strip().splitlines()[-1:])[:200]
            return f"fails a collective of two processes ({backend}): {last or f'exit status {rank.returncode}'}"
    return ""
