"""The ccl backend in real jobs: every collective, ways to leave, and ranks that do not fit together or do not come."""

import os
import random
import re
import shutil
import sys
from pathlib import Path

import jobs
import pytest
import torch.distributed as dist

from cpudist import waiting
from cpudist.topology.identity import free_port

pytestmark = pytest.mark.job

CHECKS = Path(__file__).with_name("checks")
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


LONG = pytest.mark.long  # the other launchers and numbers of ranks, of which CI tries one each
# With a core to spare for the engine's thread, and without.
POLLS, NAPS = ({"CPUDIST_TEST_PROGRESS": progress} for progress in ("polls", "naps"))
HOSTS, HOUR = {"CPUDIST_TEST_HOSTS": "2"}, {"CPUDIST_TEST_NAP": "3600", "CPUDIST_TEST_ONLY": "wakes"}
ONECCL, MPI = only("oneccl"), only("mpi-alone")


@pytest.mark.parametrize(
    ("name", "checks", "carriers", "env"),
    [
        pytest.param(
            *("intel-mpi, 2 ranks", "collectives.py 6, stack, progress, edges", "shared_memory", POLLS),
            marks=pytest.mark.versions,
        ),
        ("intel-mpi, 3 ranks", "collectives.py 12, progress, edges, threads", "shared_memory", NAPS),
        pytest.param(*("torchrun, 2 ranks", "collectives.py 12, stack", "shared_memory", POLLS), marks=LONG),
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
def test_checks_pass(name: str, checks: str, carriers: str, env: dict[str, str]) -> None:
    """Run programs of checks/ in one job: each says that it has passed, and over which transports."""
    programs = [check if ".py" in check else f"{check}.py" for check in checks.split(", ")]
    result = run_all(JOBS[name], *programs, **env)
    said = [f"{program.partition('.')[0]} passed" for program in programs]
    said += [f"carried by {carriers}\n"] if carriers else []
    said += [f"progress: {env['CPUDIST_TEST_PROGRESS']}\n"] if "CPUDIST_TEST_PROGRESS" in env else []
    assert [words for words in said if words not in result.stdout] == [], result.output
    assert "CCL_WARN" not in result.output


KILLS = int(os.environ.get("CPUDIST_TEST_KILLS", "3"))  # each of a rank, under one launcher after the other
LOOKED_UP = pytest.mark.skipif(not hasattr(dist.Backend, "_ensure_backend_registered"), reason="since torch 2.14")


def without_job(ranks: int, *words: str, timeout: float = 100, **variables: str) -> jobs.Result:
    """Run plain.py, with torch's variables set from mpirun's as scripts do, or for no launcher at all."""
    start = 'RANK=$PMI_RANK WORLD_SIZE=$PMI_SIZE exec "$@"'
    launch = jobs.mpirun(ranks, "bash", "-c", start, "bash", sys.executable)
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return run(launch, "plain.py", *words, timeout=timeout, **variables)


def test_forked_children_are_no_ranks_and_messages_outlive_their_sender() -> None:
    result = run_all(JOBS["torchrun, 2 ranks"], "leaving.py fork", "leaving.py send", **only("oneccl"))
    assert result.stdout.count("child: ccl: communication is out of use") == 4, result.output
    assert result.stdout.count("parent left") == 2, result.output
    assert "received" in result.stdout, result.output


def test_a_child_that_a_rank_spawns_is_not_that_rank(tmp_path: Path) -> None:
    result = run_all(JOBS["intel-mpi, 2 ranks"], f"leaving.py spawn {tmp_path / 'store'}")
    assert result.stdout.count("has summed") == 2, result.output


@pytest.mark.parametrize(
    ("name", "transport"),
    [pytest.param("intel-mpi, 2 ranks", "shared_memory", marks=pytest.mark.versions), ("torchrun, 2 ranks", "oneccl")],
)
def test_aborting_ends_what_a_rank_waits_for(name: str, transport: str) -> None:
    """Long before the job's timeout of 300 s; and the rank, whose communication is out of use then, has failed."""
    result = run(JOBS[name], "leaving.py", "abort_waiting", timeout=150, **only(transport))
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #2 of group '0' on rank 0 of" in result.stdout, result.output
    assert "was aborted" in result.stdout, result.output
    assert "again: ccl: communication is out of use in this process: all_reduce #2" in result.stdout, result.output


def test_aborting_where_nothing_is_under_way_harms_nothing() -> None:
    result = run_all(JOBS["intel-mpi, 3 ranks"], "leaving.py abort_idle", **only("oneccl"))
    assert result.stdout.count("left") == 3, result.output


@pytest.mark.parametrize(
    ("level", "transport"), [("serialized", "mpi-alone"), ("multiple", "oneccl"), ("funneled", "oneccl")]
)
def test_a_script_may_initialise_and_finalise_mpi(level: str, transport: str) -> None:
    result = run_all(JOBS["intel-mpi, 2 ranks"], f"leaving.py finalize {level}", **only(transport))
    assert result.stderr.count("MPI takes one call at a time") == (level == "serialized"), result.output


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_leaves_nothing(number: int, tmp_path: Path) -> None:
    """Killed at any moment, start-up included: no process stays, and nothing of ours in /dev/shm."""
    name = ["intel-mpi, 3 ranks", "mpich, 2 ranks", "torchrun, 2 ranks"][number % 3]
    victim, moment = random.randrange(int(name.split()[1])), random.uniform(0, 6)
    print(f"{name}: rank {victim} is killed after {moment:.2f} s")
    before = jobs.orphans()
    killed = tmp_path / "killed"
    result = run(JOBS[name], "forever.py", str(victim), str(moment), str(killed), timeout=100)  # no process may stay
    assert result.returncode != 0, result.output
    assert killed.exists(), f"the job has ended by itself\n{result.output}"
    # Other jobs of this machine come and go: what nobody uses for a moment may be theirs.
    assert waiting.poll(lambda: not jobs.orphans() - before, 5), result.output


def test_a_killed_peer_is_noticed_without_a_job() -> None:
    """Ranks that no launcher started, so nothing but the group can end them."""
    start = 'for r in 0 1 2; do RANK=$r "$@" & done; wait'
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    result = run(["bash", "-c", start, "bash", sys.executable], "plain.py", "killed", "2", timeout=60, **variables)
    found = re.findall(r"rank \d after ([\d.]+) s: .*rank 1 has ended or has left the group", result.stdout)
    assert len(found) == 2, result.output
    assert all(float(seconds) < 5 for seconds in found), result.output


@pytest.mark.parametrize(
    ("ranks", "transport", "what", "told", "words"),
    [
        # Shared memory by itself: the scenario `counts` of shared_memory/.
        (3, "oneccl", "counts", {0, 1, 2}, "rank 0 sends 4 bytes to rank 1, which expects 20"),
        (3, "oneccl", "gather", {0, 1, 2}, "the share of rank 2 has 1 elements, but rank 0 expects 5"),
        *(
            (2, "mpi-alone", what, {0, 1}, "ranks make different calls: rank")
            for what in ("scatter", "sizes", "empty", "operation")
        ),
        (2, "shared_memory", "types", {0, 1}, r"all_gather of 6 (int64 .* of 6 float32|float32 .* of 6 int64) "),
        (2, "shared_memory", "moved_types", {0, 1}, r"all_gather of 6 (bool .* of 6 float8|float8_e5m2 .* of 6 bool)"),
        (2, "shared_memory", "left", {0}, r"all_reduce .*rank 1 has left the group \(destroy_process_group\)"),
        # A group has a timeout of its own, also where it is set through torch's wrapper.
        (2, "shared_memory", "never", {0}, r"ccl: all_reduce #\d+ .* timed out after 5\."),
        (3, "oneccl", "never", {0, 2}, r"ccl: all_reduce #\d+ .* timed out after 5\."),
        (3, "oneccl", "wrapped", {0, 2}, r"ccl: all_reduce #\d+ .* timed out after 5\."),
    ],
)
def test_unfit_or_late_ranks_get_one_error(ranks: int, transport: str, what: str, told: set[int], words: str) -> None:
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if what == "wrapped" else {}
    result = without_job(ranks, what, str(len(told)), **variables, **only(transport))
    assert result.returncode != 0, result.output
    found = re.finditer(rf"rank (?P<rank>\d) after .*?{words}", result.stdout)
    assert {int(match["rank"]) for match in found} == told, result.output


@pytest.mark.parametrize(
    ("transport", "end", "autoload"),
    [
        pytest.param("shared_memory", "destroy", "1", marks=pytest.mark.versions),
        ("oneccl", "just end", "1"),
        pytest.param("shared_memory", "destroy", "0", marks=LOOKED_UP),
    ],
)
def test_init_process_group_without_cpudist(transport: str, end: str, autoload: str) -> None:
    """A script that knows torch alone, under mpirun: the backend starts and ends MPI.

    Told not to load what extends it, torch still finds ccl when a process group asks for it.
    """
    result = without_job(3, "turns", end, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload, **only(transport))
    assert result.returncode == 0, result.output
    assert result.stdout.count("sum 3.0 on ccl over mpi") == 3, result.output
