"""The ways in which `cpudist bench jobs` starts one script of Trainer, each at its best settings."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cpudist.machine.description import this_machine
from cpudist.pinning.preload import wanted_allocator
from cpudist.placement.openmp import THREADS
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Wishes

RANKS = 2


@dataclass(frozen=True)
class Launcher:
    """One way to start the script.

    Attributes:
        name: as tables have it.
        words: the command, up to the script.
        flags: what the script gets besides what it gets from all.
        variables: what this way needs in the environment.
        missing: why it cannot be used here; empty where it can.
        varies: whether it only varies the one before it; a smoke test leaves it out.
    """

    name: str
    words: tuple[str, ...]
    flags: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""
    varies: bool = False


def find(folder: Path) -> list[Launcher]:
    """All of them, the first being what the others are compared with; `folder` is for files that they need.

    Those on gloo get as many threads as cpudist would give a rank, which torchrun by itself does not.
    """
    threads = make_plan(this_machine(), Wishes(ranks=RANKS)).ranks[0].omp_threads
    gloo = {THREADS: os.environ.get(THREADS, str(threads)), "USE_TORCH_XLA": "0"}
    on_gloo, on_ccl = ("--use_cpu", "--ddp_backend", "gloo"), ("--no_cuda", "--ddp_backend", "ccl")
    torchrun = (_beside_python("torchrun"), "--standalone", "--nproc-per-node", str(RANKS))
    mpirun = ("mpirun", "-n", str(RANKS), _beside_python("cpudist-train"), "--backend", "ccl")
    without_mpi = "" if shutil.which("mpirun") else "there is no mpirun on PATH"
    tcmalloc = wanted_allocator(os.environ)
    return [
        Launcher("torchrun, gloo", torchrun, on_gloo, gloo),
        Launcher(
            "torchrun, gloo, tcmalloc",
            torchrun,
            on_gloo,
            {**gloo, "LD_PRELOAD": str(tcmalloc)},
            "" if tcmalloc else "tcmalloc is not installed, or the environment has decided about the allocator",
            varies=True,
        ),
        Launcher("accelerate launch --cpu, gloo", _accelerate(folder), on_gloo, gloo, without_mpi),
        Launcher("mpirun, ccl", mpirun, on_ccl, missing=without_mpi),
        Launcher("mpirun, ccl, --use_ipex", mpirun, (*on_ccl, "--use_ipex"), missing=without_mpi, varies=True),
    ]


def _accelerate(folder: Path) -> tuple[str, ...]:
    """On CPUs accelerate starts several ranks only through mpirun, which it takes a hostfile to mean."""
    hostfile = folder / "hosts"
    hostfile.write_text("localhost\n", encoding="utf-8")
    return (
        *(_beside_python("accelerate"), "launch", "--cpu", "--mpirun_hostfile", str(hostfile)),
        *("--num_processes", str(RANKS), "--num_machines", "1", "--main_process_port", str(_free_port())),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    )


def _beside_python(program: str) -> str:
    return str(Path(sys.executable).with_name(program))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
