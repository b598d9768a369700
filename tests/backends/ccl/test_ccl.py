"""The ccl backend in real jobs: every collective, what stands on them, and ranks that misbehave."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist

CHECKS = Path(__file__).parent / "checks"

JOBS = {
    "intel-mpi, 2 ranks": jobs.mpirun(2, sys.executable),
    "intel-mpi, 3 ranks": jobs.mpirun(3, sys.executable),
    # Without -ppn MPICH 4.0's Hydra maps one rank per host, and Intel MPI's library aborts in MPI_Init.
    "mpich, 2 ranks": ["mpirun.mpich", "-ppn", "2", "-n", "2", sys.executable],
    "torchrun, 2 ranks": jobs.torchrun(2),
}
everywhere = pytest.mark.parametrize("launch", JOBS.values(), ids=JOBS.keys())


def run(launch: list[str], check: str, *args: str, timeout: float = 240, **env: str) -> jobs.Result:
    if shutil.which(launch[0]) is None:
        pytest.skip(f"{launch[0]} is not installed")
    return jobs.run([*launch, str(CHECKS / check), *args], timeout, env={"PYTHONWARNINGS": "ignore", **env})


@everywhere
def test_every_collective_agrees_with_torch(launch: list[str]) -> None:
    result = run(launch, "collectives.py", "40")
    assert result.returncode == 0, result.output
    assert "checks passed" in result.stdout, result.output
    assert "CCL_WARN" not in result.output


@pytest.mark.parametrize("progress", ["inline", "thread"])
def test_every_collective_with_and_without_engine_thread(progress: str, tmp_path: Path) -> None:
    """On this machine a rank may have no core to spare for the thread; one computing thread less than none makes it."""
    launch = [*jobs.mpirun(2), "-env", "CPUDIST_TEST_PROGRESS", progress, sys.executable]
    result = run(launch, "progress.py", "25")
    assert result.returncode == 0, result.output
    assert f"progress: {progress}" in result.stdout, result.output
    assert "checks passed" in result.stdout, result.output


@everywhere
def test_ddp_fsdp_dtensor_and_checkpoints(launch: list[str], tmp_path: Path) -> None:
    result = run(launch, "stack.py", str(tmp_path / "checkpoint"))
    assert result.returncode == 0, result.output
    assert "stack passed" in result.stdout, result.output


@pytest.mark.parametrize("leave", ["destroy", "just end"])
def test_init_process_group_without_cpudist(leave: str) -> None:
    """A script that knows torch alone, under mpirun: oneCCL starts and ends MPI itself."""
    plain_torch(leave)


@pytest.mark.skipif(not hasattr(dist.Backend, "_ensure_backend_registered"), reason="torch looks ccl up from 2.14 on")
def test_init_process_group_where_torch_looks_ccl_up() -> None:
    """Told not to load what extends it, torch still finds ccl when a process group asks for it."""
    plain_torch("destroy", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def plain_torch(leave: str, **env: str) -> None:
    result = run(JOBS["intel-mpi, 3 ranks"], "plain_torch.py", leave, timeout=100, **env)
    assert result.returncode == 0, result.output
    assert result.stdout.count("sum 3.0 on ccl over mpi") == 3, result.output


def test_a_late_rank_is_an_error_that_names_the_operation() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "faults.py", "late", timeout=60)
    assert result.returncode != 0
    assert result.seconds < 40
    for words in ("all_reduce #", "rank 0 of 2", "timed out after 3."):
        assert words in result.stderr, result.output
    assert result.stderr.count("Traceback") == 1, result.output


def test_a_late_rank_over_ofi_ends_the_job_too() -> None:
    result = run(JOBS["torchrun, 2 ranks"], "faults.py", "late", timeout=100)
    assert result.returncode != 0
    assert "timed out after 3." in result.stderr, result.output


def test_a_caught_timeout_leaves_oneccl_out_of_use_and_the_job_failed() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "faults.py", "caught", timeout=60)
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #" in result.stdout, result.output
    assert "again: oneCCL is out of use" in result.stdout, result.output


@pytest.mark.parametrize("name", ["intel-mpi, 2 ranks", "torchrun, 2 ranks"])
def test_a_killed_rank_ends_the_job(name: str) -> None:
    result = run(JOBS[name], "faults.py", "killed", timeout=100)
    assert result.returncode != 0


@pytest.mark.parametrize("name", ["intel-mpi, 2 ranks", "intel-mpi, 3 ranks", "torchrun, 2 ranks"])
def test_an_exception_on_one_rank_ends_the_job_with_its_traceback_once(name: str) -> None:
    result = run(JOBS[name], "faults.py", "raises", timeout=100)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: rank 1 has had enough") == 2, result.output  # traceback, closing line
    if not name.startswith("torchrun"):  # whose agent ends with a traceback of its own
        assert result.stderr.count("Traceback") == 1, result.output
    assert "rank 1 on" in result.stderr, result.output
