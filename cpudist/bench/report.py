"""Where figures were measured, and the JSON file that keeps both."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cpudist.machine.cpus import allowed_cpus, cpu_model
from cpudist.version import __version__

if TYPE_CHECKING:
    from cpudist.job import Job

# Variables that change how fast ranks communicate or compute; recorded where they are set.
_TELLING = ("CCL_", "I_MPI_", "FI_", "OMP_", "KMP_", "GLOO_", "MPICH_")
_CHATTER = ("I_MPI_INFO_", "I_MPI_HYDRA_")  # Intel MPI's notes to itself


class Results(Protocol):
    """What a benchmark returns."""

    def table(self) -> str: ...

    def as_list(self) -> list[dict[str, Any]]: ...


def environment(job: Job) -> dict[str, Any]:
    """The job and this rank's machine."""
    world = job.world
    return {
        **machine(),
        **job.backend.details(),
        "launcher": world.launcher,
        "world_size": world.size,
        "hosts": list(world.hosts),
        "transport": job.backend.transport(),
        "threads": torch.get_num_threads(),
    }


def machine() -> dict[str, Any]:
    """This process's machine and software."""
    return {
        "cpudist": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        "cpu_model": cpu_model(),
        "cpus": allowed_cpus(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_TELLING) and not name.startswith(_CHATTER)
        },
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def headline(environment: Mapping[str, Any], busy: bool = False) -> str:
    """What a reader of the table must know; `busy`: other work ran meanwhile, and a round counts by its mean."""
    hosts, threads = len(environment["hosts"]), environment["threads"]
    carriers = [name.removeprefix("carried_by_") for name in environment if name.startswith("carried_by_")]
    carried = f" by {', '.join(carriers)}" if carriers else ""
    times = "median of all calls (range of the rounds' medians)"
    if busy:
        times = "beside other work on every core; median of the rounds' means (their range)"
    return (
        f"{environment['world_size']} ranks on {hosts} host{'s' if hosts > 1 else ''}, "
        f"{environment['launcher']}, ccl{carried} (oneCCL over {environment['transport']})\n"
        f"rank 0: cpus {environment['cpus']}, {threads} thread{'s' if threads > 1 else ''}, "
        f"{environment['cpu_model']}\n"
        f"times: {times}"
    )


def headline_of_jobs(machine: Mapping[str, Any], ranks: int) -> str:
    """What a reader of the table of whole jobs must know."""
    return (
        f"{ranks} ranks on the cpus {machine['cpus']}, {machine['cpu_model']}\n"
        f"torch {machine['torch']}, transformers {machine['transformers']}\n"
        "median of the rounds (their range); samples/s as Trainer says it, without start-up"
    )


def write(path: Path, benchmark: str, environment: Mapping[str, Any], results: Results) -> None:
    """Write everything that was measured, and where."""
    content = {"benchmark": benchmark, "environment": environment, "results": results.as_list()}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
