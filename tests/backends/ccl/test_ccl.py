"""The ccl backend in real jobs: every collective, and what stands on them."""

import sys
from pathlib import Path

import jobs
import pytest
from checks_run import JOBS, only, run_all

LONG = pytest.mark.long  # the other launchers and numbers of ranks, of which CI tries one each


@pytest.mark.job
@pytest.mark.parametrize(
    ("name", "progress", "checks"),
    [
        # With a core to spare for the engine's thread, and without.
        pytest.param(
            "intel-mpi, 2 ranks", "polls", "collectives.py 6, stack, progress, edges", marks=pytest.mark.versions
        ),
        ("intel-mpi, 3 ranks", "naps", "collectives.py 12, progress, edges, threads"),
        pytest.param("torchrun, 2 ranks", "polls", "collectives.py 12, stack", marks=LONG),
    ],
)
def test_collectives_and_what_torch_builds_on_them(name: str, progress: str, checks: str, tmp_path: Path) -> None:
    said = ["carried by shared_memory\n", f"progress: {progress}"]
    check_passed(JOBS[name], checks.replace("stack", f"stack.py {tmp_path}"), *said, CPUDIST_TEST_PROGRESS=progress)


@pytest.mark.job
@pytest.mark.parametrize(
    ("name", "progress", "checks"),
    [
        ("intel-mpi, 3 ranks", "naps", "collectives.py 8, edges, progress"),  # over MPI
        pytest.param("mpich, 2 ranks", "naps", "collectives.py 12", marks=LONG),
        pytest.param("torchrun, 2 ranks", "polls", "collectives.py 12, edges, progress", marks=LONG),
    ],
)
def test_collectives_over_oneccl_alone(name: str, progress: str, checks: str) -> None:
    said = ["carried by oneccl\n", f"progress: {progress}"]
    check_passed(JOBS[name], checks, *said, CPUDIST_TEST_PROGRESS=progress, **only("oneccl"))


@pytest.mark.job
@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("open-mpi, 3 ranks", "collectives.py 8, edges"),
        pytest.param("intel-mpi, 3 ranks", "collectives.py 12, edges, progress", marks=LONG),
        pytest.param("mpich, 2 ranks", "collectives.py 12, edges, progress", marks=LONG),
    ],
)
def test_collectives_over_mpi_alone(name: str, checks: str) -> None:
    """One binary: Open MPI's handles are pointers, MPICH's are integers."""
    check_passed(JOBS[name], checks, "carried by mpi\n", CPUDIST_TEST_PROGRESS="naps", **only("mpi-alone"))


@pytest.mark.job
@pytest.mark.parametrize(
    ("ranks", "checks", "carriers"),
    [
        (4, "collectives.py 6, progress, threads", "oneccl and shared_memory"),
        pytest.param(2, "edges, progress", "", marks=LONG),
        # 3 ranks do not divide; groups of one host share memory.
        pytest.param(3, "collectives.py 8", "oneccl and shared_memory", marks=LONG),
    ],
)
def test_collectives_across_two_hosts(ranks: int, checks: str, carriers: str) -> None:
    said = [f"carried by {carriers}\n"] if carriers else []
    check_passed(jobs.mpirun(ranks, sys.executable), checks, *said, CPUDIST_TEST_HOSTS="2")


@pytest.mark.job
def test_a_future_wakes_the_thread_that_completes_it() -> None:
    """It would sleep for an hour."""
    naps = {"CPUDIST_TEST_HOSTS": "2", "CPUDIST_TEST_PROGRESS": "naps", "CPUDIST_TEST_NAP": "3600"}
    check_passed(JOBS["intel-mpi, 2 ranks"], "progress", CPUDIST_TEST_ONLY="wakes", **naps)


@pytest.mark.job
@pytest.mark.parametrize(
    ("ranks", "wire", "transport"), [(3, "bf16", ""), (4, "int8", ""), (4, "bf16", "mpi"), (3, "int8", "mpi")]
)
def test_allreduces_that_are_converted_across_hosts(ranks: int, wire: str, transport: str) -> None:
    """Sums within what the format allows, the same bits on all ranks, and errors that the next calls make good."""
    env = {"CPUDIST_TEST_HOSTS": "2", "CPUDIST_TRANSPORT": transport}
    check_passed(jobs.mpirun(ranks, sys.executable), f"compressed.py {wire}", **env)


def check_passed(launch: list[str], checks: str, *said: str, **env: str) -> None:
    """Run these programs of checks/ in one job: each says that it has passed, and the job what else is `said`."""
    programs = [check if ".py" in check else f"{check}.py" for check in checks.split(", ")]
    result = run_all(launch, *programs, **env)
    for words in (*(f"{program.partition('.')[0]} passed" for program in programs), *said):
        assert words in result.stdout, result.output
    assert "CCL_WARN" not in result.output
