"""The ccl backend in real jobs: every collective, and what stands on them."""

from pathlib import Path

import pytest
from checks_run import JOBS, only, run_all

LONG = pytest.mark.long  # the other launchers and numbers of ranks, of which CI tries one each
# With a core to spare for the engine's thread, and without.
POLLS, NAPS = ({"CPUDIST_TEST_PROGRESS": progress} for progress in ("polls", "naps"))
HOSTS, HOUR = {"CPUDIST_TEST_HOSTS": "2"}, {"CPUDIST_TEST_NAP": "3600", "CPUDIST_TEST_ONLY": "wakes"}
ONECCL, MPI = only("oneccl"), only("mpi-alone")


@pytest.mark.job
@pytest.mark.parametrize(
    ("name", "checks", "carriers", "env"),
    [
        pytest.param(
            *("intel-mpi, 2 ranks", "collectives.py 6, stack.py FOLDER, progress, edges", "shared_memory", POLLS),
            marks=pytest.mark.versions,
        ),
        ("intel-mpi, 3 ranks", "collectives.py 12, progress, edges, threads", "shared_memory", NAPS),
        pytest.param(*("torchrun, 2 ranks", "collectives.py 12, stack.py FOLDER", "shared_memory", POLLS), marks=LONG),
        # Over oneCCL alone, which sends by MPI or by libfabric.
        ("intel-mpi, 3 ranks", "collectives.py 8, edges, progress", "oneccl", NAPS | ONECCL),
        pytest.param("mpich, 2 ranks", "collectives.py 12", "oneccl", NAPS | ONECCL, marks=LONG),
        pytest.param("torchrun, 2 ranks", "collectives.py 12, edges, progress", "oneccl", POLLS | ONECCL, marks=LONG),
        # Over MPI alone, by one binary: Open MPI's handles are pointers, MPICH's are integers.
        ("open-mpi, 3 ranks", "collectives.py 8, edges", "mpi", NAPS | MPI),
        pytest.param("intel-mpi, 3 ranks", "collectives.py 12, edges, progress", "mpi", NAPS | MPI, marks=LONG),
        pytest.param("mpich, 2 ranks", "collectives.py 12, edges, progress", "mpi", NAPS | MPI, marks=LONG),
        # Across two hosts. 3 ranks do not divide; groups of one host share memory.
        ("intel-mpi, 4 ranks", "collectives.py 6, progress, threads", "oneccl and shared_memory", HOSTS),
        pytest.param("intel-mpi, 2 ranks", "edges, progress", "", HOSTS, marks=LONG),
        pytest.param("intel-mpi, 3 ranks", "collectives.py 8", "oneccl and shared_memory", HOSTS, marks=LONG),
        # A future wakes the thread that completes it, which would sleep for an hour.
        ("intel-mpi, 2 ranks", "progress", "", NAPS | HOSTS | HOUR),
        # Allreduces that are converted between hosts, by the transport that they take by themselves and over MPI.
        ("intel-mpi, 3 ranks", "compressed.py bf16", "", HOSTS),
        ("intel-mpi, 4 ranks", "compressed.py int8", "", HOSTS),
        ("intel-mpi, 4 ranks", "compressed.py bf16", "", HOSTS | {"CPUDIST_TRANSPORT": "mpi"}),
        ("intel-mpi, 3 ranks", "compressed.py int8", "", HOSTS | {"CPUDIST_TRANSPORT": "mpi"}),
    ],
)
def test_checks_pass(name: str, checks: str, carriers: str, env: dict[str, str], tmp_path: Path) -> None:
    """Run programs of checks/ in one job: each says that it has passed, and over which transports."""
    named = checks.replace("FOLDER", str(tmp_path)).split(", ")
    programs = [check if ".py" in check else f"{check}.py" for check in named]
    result = run_all(JOBS[name], *programs, **env)
    said = [f"{program.partition('.')[0]} passed" for program in programs]
    said += [f"carried by {carriers}\n"] if carriers else []
    said += [f"progress: {env['CPUDIST_TEST_PROGRESS']}\n"] if "CPUDIST_TEST_PROGRESS" in env else []
    assert [words for words in said if words not in result.stdout] == [], result.output
    assert "CCL_WARN" not in result.output
