"""The ccl backend in real jobs: every collective, and what stands on them. Ranks that fail: tests/job."""

import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist
from checks_run import JOBS, only, run, run_all

LONG = pytest.mark.long  # the other launchers and numbers of ranks, of which CI tries one each


@pytest.mark.job
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("intel-mpi, 2 ranks", marks=pytest.mark.versions),
        "intel-mpi, 3 ranks",
        pytest.param("torchrun, 2 ranks", marks=pytest.mark.versions),
    ],
)
def test_collectives_and_what_torch_builds_on_them(name: str, tmp_path: Path) -> None:
    """Every collective agrees with gloo; DDP, FSDP, DTensor, checkpoints and functional collectives work."""
    checks, env = ["collectives.py 12", f"stack.py {tmp_path / 'checkpoint'}"], {}
    said = ["carried by shared_memory\n"]
    if name.startswith("intel-mpi"):
        checks += ["progress.py", "edges.py", "semantics.py", "threads.py"]
        env = {"CPUDIST_TEST_PROGRESS": "polls" if "2 ranks" in name else "naps"}  # with and without a core to spare
        said.append(f"progress: {env['CPUDIST_TEST_PROGRESS']}")
    check_passed(JOBS[name], checks, *said, **env)


@pytest.mark.job
@pytest.mark.parametrize(
    "name", ["intel-mpi, 3 ranks", *(pytest.param(one, marks=LONG) for one in ("mpich, 2 ranks", "torchrun, 2 ranks"))]
)
def test_collectives_over_oneccl_alone(name: str) -> None:
    checks, progress = ["collectives.py 12"], "polls" if name.startswith("torchrun") else "naps"
    if not name.startswith("mpich"):  # over MPI and over libfabric
        checks += ["edges.py", "progress.py", "semantics.py"]
    said = ["carried by oneccl\n", f"progress: {progress}"]
    check_passed(JOBS[name], checks, *said, CPUDIST_TEST_PROGRESS=progress, **only("oneccl"))


@pytest.mark.job
@pytest.mark.parametrize("ranks", [4, *(pytest.param(one, marks=LONG) for one in (2, 3))])
def test_collectives_and_edges_across_hosts(ranks: int) -> None:
    """4 ranks on 2 hosts: inside by shared memory, across by oneCCL. 3 ranks do not divide: oneCCL alone."""
    edges = ["edges.py", "progress.py"]
    checks = {2: edges, 3: ["collectives.py 8"], 4: ["collectives.py 8", *edges, "threads.py"]}[ranks]
    result = check_passed(jobs.mpirun(ranks, sys.executable), checks, CPUDIST_TEST_HOSTS="2")
    if ranks == 4:
        assert "carried by oneccl and shared_memory\n" in result.stdout, result.output


@pytest.mark.job
def test_a_future_wakes_the_thread_that_completes_it() -> None:
    """It would sleep for an hour."""
    naps = {"CPUDIST_TEST_HOSTS": "2", "CPUDIST_TEST_PROGRESS": "naps", "CPUDIST_TEST_NAP": "3600"}
    check_passed(JOBS["intel-mpi, 2 ranks"], ["progress.py"], CPUDIST_TEST_ONLY="wakes", **naps)


@pytest.mark.job
@pytest.mark.parametrize(("ranks", "wire"), [(3, "bf16"), (4, "int8")])
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


LOOKED_UP = pytest.mark.skipif(
    not hasattr(dist.Backend, "_ensure_backend_registered"), reason="torch looks ccl up from 2.14 on"
)


@pytest.mark.job
@pytest.mark.versions
@pytest.mark.parametrize(
    ("transport", "leave", "autoload"),
    [
        ("shared_memory", "destroy", "1"),
        ("oneccl", "just end", "1"),
        pytest.param("shared_memory", "destroy", "0", marks=LOOKED_UP),
    ],
)
def test_init_process_group_without_cpudist(transport: str, leave: str, autoload: str) -> None:
    """A script that knows torch alone, under mpirun: oneCCL starts and ends MPI itself.

    Told not to load what extends it, torch still finds ccl when a process group asks for it.
    """
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload, **only(transport)}
    result = run(JOBS["intel-mpi, 3 ranks"], "plain_torch.py", leave, timeout=100, **variables)
    assert result.returncode == 0, result.output
    assert result.stdout.count("sum 3.0 on ccl over mpi") == 3, result.output


@pytest.mark.job
def test_an_unknown_transport_is_an_error() -> None:
    result = run(JOBS["torchrun, 2 ranks"], "edges.py", timeout=60, CPUDIST_TRANSPORT="pigeon")
    assert result.returncode != 0, result.output
    assert "CPUDIST_TRANSPORT=pigeon is not known" in result.stderr, result.output
