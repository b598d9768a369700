"""The ccl backend in real jobs: every collective, what stands on them, and ranks that misbehave."""

from __future__ import annotations

import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist
from checks_run import JOBS, everywhere, only, run


@everywhere
def test_every_collective_agrees_with_torch(launch: list[str]) -> None:
    check_collectives(launch, "shared_memory")


@pytest.mark.parametrize("name", ["intel-mpi, 3 ranks", "mpich, 2 ranks", "torchrun, 2 ranks"])
def test_every_collective_over_oneccl_alone(name: str) -> None:
    check_collectives(JOBS[name], "oneccl")


def check_collectives(launch: list[str], transport: str) -> None:
    result = run(launch, "collectives.py", "40", **only(transport))
    assert result.returncode == 0, result.output
    assert "checks passed" in result.stdout, result.output
    assert f"carried by {transport}\n" in result.stdout, result.output
    assert "CCL_WARN" not in result.output


@pytest.mark.parametrize("progress", ["naps", "polls"])
def test_every_collective_with_and_without_a_core_to_spare(progress: str) -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "conditions.py", "collectives.py", "25", CPUDIST_TEST_PROGRESS=progress)
    assert result.returncode == 0, result.output
    assert f"progress: {progress}" in result.stdout, result.output
    assert "checks passed" in result.stdout, result.output


@pytest.mark.parametrize("ranks", [3, 4])
def test_every_collective_across_hosts(ranks: int) -> None:
    """4 ranks on 2 hosts: inside by shared memory, across by oneCCL. 3 ranks do not divide: oneCCL alone."""
    launch = jobs.mpirun(ranks, sys.executable)
    result = run(launch, "conditions.py", "collectives.py", "15", CPUDIST_TEST_HOSTS="2")
    assert result.returncode == 0, result.output
    assert "checks passed" in result.stdout, result.output
    assert ("hierarchy" in result.stdout) == (ranks == 4), result.output


def test_every_collective_on_two_numa_nodes() -> None:
    check_on_numa_nodes("0,0,1,1", "collectives.py", "8", "checks passed")


def test_the_transports_agree_on_two_numa_nodes() -> None:
    check_on_numa_nodes("1,0,1,0", "compare.py", "12", "12 cases agree")


def test_a_rank_in_several_numa_nodes() -> None:
    check_on_numa_nodes("0,0,1,-", "compare.py", "1", "1 cases agree", two_levels=False)


def check_on_numa_nodes(nodes: str, check: str, cases: str, said: str, two_levels: bool = True) -> None:
    """By shared memory in two levels, where each of 4 ranks is in one node."""
    launch = jobs.mpirun(4, sys.executable)
    result = run(launch, "conditions.py", check, cases, CPUDIST_TEST_NUMA=nodes)
    assert result.returncode == 0, result.output
    assert said in result.stdout, result.output
    assert ("numa_hierarchy" in result.stdout) == two_levels, result.output


def test_the_transports_agree_and_shared_memory_gives_all_ranks_the_same_bits() -> None:
    result = run(JOBS["intel-mpi, 3 ranks"], "compare.py", "60")
    assert result.returncode == 0, result.output
    assert "60 cases agree" in result.stdout, result.output


@everywhere
def test_ddp_fsdp_dtensor_and_checkpoints(launch: list[str], tmp_path: Path) -> None:
    result = run(launch, "stack.py", str(tmp_path / "checkpoint"))
    assert result.returncode == 0, result.output
    assert "stack passed" in result.stdout, result.output


@pytest.mark.parametrize("name", ["intel-mpi, 2 ranks", "intel-mpi, 3 ranks"])
@pytest.mark.parametrize(("check", "said"), [("functional.py", "functional collectives"), ("sharded.py", "sharded")])
def test_what_torch_builds_on_collectives(name: str, check: str, said: str) -> None:
    result = run(JOBS[name], check)
    assert result.returncode == 0, result.output
    assert f"{said} passed" in result.stdout, result.output


@pytest.mark.parametrize("leave", ["destroy", "just end"])
@pytest.mark.parametrize("transport", ["shared_memory", "oneccl"])
def test_init_process_group_without_cpudist(leave: str, transport: str) -> None:
    """A script that knows torch alone, under mpirun: oneCCL starts and ends MPI itself."""
    plain_torch(leave, **only(transport))


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


def test_a_caught_timeout_leaves_communication_out_of_use_and_the_job_failed() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "faults.py", "caught", timeout=60)
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #" in result.stdout, result.output
    assert "again: ccl: communication is out of use" in result.stdout, result.output


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
