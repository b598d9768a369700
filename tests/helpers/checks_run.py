"""Runs the programs of tests/backends/ccl/checks on real ranks."""

import shutil
import sys
from pathlib import Path

import jobs
import pytest

CHECKS = Path(__file__).parents[1] / "backends" / "ccl" / "checks"

JOBS = {
    **{f"intel-mpi, {ranks} ranks": jobs.mpirun(ranks, sys.executable) for ranks in (2, 3, 4)},
    # Without -ppn MPICH 4.0's Hydra maps one rank per host, and Intel MPI's library aborts in MPI_Init.
    "mpich, 2 ranks": ["mpirun.mpich", "-ppn", "2", "-n", "2", sys.executable],
    "open-mpi, 3 ranks": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "3", sys.executable],
    "torchrun, 2 ranks": jobs.torchrun(2),
}


def run(launch: list[str], check: str, *args: str, timeout: float = 240, **env: str) -> jobs.Result:
    """Run a program of checks/ by one of JOBS, with these variables."""
    if shutil.which(launch[0]) is None:
        pytest.skip(f"{launch[0]} is not installed")
    return jobs.run([*launch, str(CHECKS / check), *args], timeout, env={"PYTHONWARNINGS": "ignore", **env})


def run_all(launch: list[str], *checks: str, **env: str) -> jobs.Result:
    """Run several programs of checks/, each with its arguments, in one job; all of them must succeed."""
    result = run(launch, "programs.py", *" -- ".join(checks).split(), **env)
    assert result.returncode == 0, result.output
    return result


def only(transport: str) -> dict[str, str]:
    """The variables by which a job uses this transport; shared memory is what it takes by itself."""
    return {} if transport == "shared_memory" else {"CPUDIST_TRANSPORT": transport}
