"""The ccl backend in real jobs: every collective, what stands on them, and ranks that misbehave."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist
from checks_run import JOBS, only, run, run_all

# As the ranks report a lost one to the user, at a line's start, and not in a launcher's words.
KILLED = re.compile(r"^cpudist: rank 1 on \S+ ended without an error message", re.MULTILINE)


# Over MPI and over libfabric: the other environments need no more.
_IN_ALL_ENVIRONMENTS = ("intel-mpi, 2 ranks", "torchrun, 2 ranks")


@pytest.mark.job
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.versions] * (name in _IN_ALL_ENVIRONMENTS)) for name in JOBS]
)
def test_collectives_and_what_torch_builds_on_them(name: str, tmp_path: Path) -> None:
    """Every collective agrees with gloo; DDP, FSDP, DTensor, checkpoints and functional collectives work."""
    checks, env = ["collectives.py 12", f"stack.py {tmp_path / 'checkpoint'}"], {}
    said = ["carried by shared_memory\n"]
    if name.startswith("intel-mpi"):
        checks += ["functional.py", "sharded.py", "progress.py", "edges.py", "threads.py"]
        env = {"CPUDIST_TEST_PROGRESS": "polls" if "2 ranks" in name else "naps"}  # with and without a core to spare
        said.append(f"progress: {env['CPUDIST_TEST_PROGRESS']}")
    check_passed(JOBS[name], checks, *said, **env)


@pytest.mark.job
@pytest.mark.parametrize("name", ["intel-mpi, 3 ranks", "mpich, 2 ranks", "torchrun, 2 ranks"])
def test_collectives_over_oneccl_alone(name: str) -> None:
    checks, progress = ["collectives.py 12"], "polls" if name.startswith("torchrun") else "naps"
    if not name.startswith("mpich"):  # over MPI and over libfabric
        checks += ["edges.py", "progress.py"]
    said = ["carried by oneccl\n", f"progress: {progress}"]
    check_passed(JOBS[name], checks, *said, CPUDIST_TEST_PROGRESS=progress, **only("oneccl"))


@pytest.mark.job
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives_and_edges_across_hosts(ranks: int) -> None:
    """4 ranks on 2 hosts: inside by shared memory, across by oneCCL. 3 ranks do not divide: oneCCL alone."""
    edges = ["edges.py", "progress.py"]
    checks = {2: edges, 3: ["collectives.py 8"], 4: ["collectives.py 8", *edges, "threads.py"]}[ranks]
    result = check_passed(jobs.mpirun(ranks, sys.executable), checks, CPUDIST_TEST_HOSTS="2")
    if ranks > 2:
        assert ("carried by oneccl and shared_memory\n" in result.stdout) == (ranks == 4), result.output


@pytest.mark.job
def test_a_future_wakes_the_thread_that_completes_it() -> None:
    variables = {"CPUDIST_TEST_HOSTS": "2", "CPUDIST_TEST_PROGRESS": "naps", "CPUDIST_TEST_NAP": "3600"}
    check_passed(JOBS["intel-mpi, 2 ranks"], ["nap.py"], **variables)


@pytest.mark.job
@pytest.mark.parametrize(("ranks", "wire"), [pytest.param(2, "int8", marks=pytest.mark.long), (3, "bf16"), (4, "int8")])
def test_allreduces_that_are_converted_across_hosts(ranks: int, wire: str) -> None:
    """Sums within what the format allows, the same bits on all ranks, and errors that the next calls make good."""
    check_passed(jobs.mpirun(ranks, sys.executable), [f"compressed.py {wire}"], CPUDIST_TEST_HOSTS="2")


def check_passed(launch: list[str], checks: list[str], *said: str, **env: str) -> jobs.Result:
    """Run these programs of checks/ in one job: each says that it has passed, and the job what else is `said`."""
    result = run_all(launch, *checks, **env)
    for words in (*(f"{check.partition('.')[0]} passed" for check in checks), *said):
        assert words in result.stdout, result.output
    assert "CCL_WARN" not in result.output
    return result


@pytest.mark.job
def test_the_transports_agree_and_shared_memory_gives_all_ranks_the_same_bits() -> None:
    check_passed(JOBS["intel-mpi, 3 ranks"], ["compare.py 20"])


@pytest.mark.job
@pytest.mark.parametrize(
    ("transport", "leave"),
    [
        pytest.param("shared_memory", "destroy", marks=pytest.mark.versions),
        pytest.param("shared_memory", "just end", marks=pytest.mark.long),
        pytest.param("oneccl", "destroy", marks=pytest.mark.long),
        pytest.param("oneccl", "just end", marks=pytest.mark.versions),
    ],
)
def test_init_process_group_without_cpudist(leave: str, transport: str) -> None:
    """A script that knows torch alone, under mpirun: oneCCL starts and ends MPI itself."""
    plain_torch(leave, **only(transport))


@pytest.mark.job
@pytest.mark.versions
@pytest.mark.skipif(not hasattr(dist.Backend, "_ensure_backend_registered"), reason="torch looks ccl up from 2.14 on")
def test_init_process_group_where_torch_looks_ccl_up() -> None:
    """Told not to load what extends it, torch still finds ccl when a process group asks for it."""
    plain_torch("destroy", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def plain_torch(leave: str, **env: str) -> None:
    result = run(JOBS["intel-mpi, 3 ranks"], "plain_torch.py", leave, timeout=100, **env)
    assert result.returncode == 0, result.output
    assert result.stdout.count("sum 3.0 on ccl over mpi") == 3, result.output


@pytest.mark.job
def test_a_late_rank_is_an_error_that_names_the_operation() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "faults.py", "late", timeout=100)
    assert result.returncode != 0
    for words in ("all_reduce #", "rank 0 of 2", "timed out after 3."):
        assert words in result.stderr, result.output
    assert result.stderr.count("Traceback") == 1, result.output


@pytest.mark.job
def test_a_late_rank_over_ofi_ends_the_job_too() -> None:
    result = run(JOBS["torchrun, 2 ranks"], "faults.py", "late", timeout=100)
    assert result.returncode != 0
    assert "timed out after 3." in result.stderr, result.output


@pytest.mark.job
def test_a_caught_timeout_leaves_communication_out_of_use_and_the_job_failed() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "faults.py", "caught", timeout=100)
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #" in result.stdout, result.output
    assert "again: ccl: communication is out of use" in result.stdout, result.output


@pytest.mark.job
@pytest.mark.parametrize("name", ["intel-mpi, 2 ranks", "torchrun, 2 ranks"])
def test_a_killed_rank_ends_the_job(name: str) -> None:
    result = run(JOBS[name], "faults.py", "killed", timeout=100)
    assert result.returncode not in (0, 2), result.output
    assert "rank 1 kills itself\n" in result.stdout, result.output
    assert KILLED.search(result.stderr), result.output


@pytest.mark.job
@pytest.mark.parametrize("name", ["intel-mpi, 3 ranks", "torchrun, 2 ranks"])
def test_an_exception_on_one_rank_ends_the_job_with_its_traceback_once(name: str) -> None:
    result = run(JOBS[name], "faults.py", "raises", timeout=100)
    assert result.returncode != 0
    assert result.stderr.count("ValueError: rank 1 has had enough") == 2, result.output  # traceback, closing line
    if not name.startswith("torchrun"):  # whose agent ends with a traceback of its own
        assert result.stderr.count("Traceback") == 1, result.output
    assert "rank 1 on" in result.stderr, result.output
