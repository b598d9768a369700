"""Real jobs under `cpudist-train` and of scripts that call `cpudist.init`: the mask of every thread, from /proc."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jobs
import pytest
from control_group import ControlGroup
from layouts import format_mask

from cpudist.pinning.plan import Plan, PlanOptions, make_plan
from cpudist.pinning.preload import wanted_allocator
from cpudist.topology.machine import this_machine

pytestmark = pytest.mark.job

PLACEMENT = str(Path(__file__).parent / "checks" / "placement.py")
CPUS = sorted(os.sched_getaffinity(0))


def plan() -> Plan:
    """Return the plan of two ranks on this machine."""
    found = make_plan(this_machine({}), PlanOptions(2))
    if len(CPUS) < 2 or not found.pinned:
        pytest.skip("needs two cores, and no CPU quota")
    return found


Ranks = list[dict[str, Any]]


def ranks_of(done: jobs.Result) -> Ranks:
    """Return what each rank says of itself, in rank order."""
    lines = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"rank"' in line]
    return sorted(lines, key=lambda line: int(line["rank"]))


def probe(
    launcher: list[str], *options: str, env: Mapping[str, str] | None = None, warns: str = "", ranks: int = 2
) -> Ranks:
    """Train under `launcher` and `cpudist-train`; return what each rank says of itself."""
    words = jobs.train("--backend", "gloo", *options, PLACEMENT, "train", "two words")
    done = jobs.completed([*launcher, *words], 120, env)
    assert (warns in done.stderr) if warns else ("warning: " not in done.stderr.replace("Warning", "")), done.output
    found = ranks_of(done)
    assert [rank["rank"] for rank in found] == list(range(ranks)), done.output
    assert all(rank["argv"] == ["train", "two words"] for rank in found)
    return found


def check(found: Ranks, expected: Plan) -> None:
    """Every thread of every rank is where the plan has it, and tcmalloc is its allocator, if it is installed."""
    there = wanted_allocator({}) is not None
    for rank, share in zip(found, expected.ranks, strict=True):
        assert rank["main"] == list(share.cpus)
        assert rank["omp_threads"] == share.omp_threads == len(share.cpus)
        assert (rank["preloaded"], rank["tcmalloc"]) == (there, there)
        for mask in rank["masks"]:
            assert set(mask) <= set(share.cpus), rank


TORCHRUN = jobs.torchrun(2, "--no-python")
LAUNCHERS = {
    "mpich": ["mpirun.mpich", "-n", "2", "-ppn", "2"],
    "open-mpi": ["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "-n", "2", "-x", "PATH"],
    "torchrun": TORCHRUN,
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_pin_themselves(name: str) -> None:
    launcher = LAUNCHERS[name]
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    if name == "open-mpi" and "PYTHONPATH" in os.environ:
        launcher = [*launcher, "-x", "PYTHONPATH"]
    check(probe(launcher), plan())


@pytest.mark.parametrize("binding", ["none", "mask_cpu"])
def test_srun(binding: str, slurm: dict[str, str]) -> None:
    """Ranks pin themselves unless Slurm has bound them, here the first one to the last CPUs."""
    expected = plan()
    if binding == "mask_cpu":
        expected = dataclasses.replace(expected, ranks=tuple(reversed(expected.ranks)))
        binding += ":" + ",".join(format_mask(rank.cpus) for rank in expected.ranks)
    check(probe(["srun", "--ntasks=2", "--mpi=none", f"--cpu-bind={binding}"], env=slurm), expected)


def test_what_the_launcher_has_pinned_stays() -> None:
    """Intel MPI is told to give rank 0 the last CPUs; a shell between it and rank 1 changes nothing."""
    ranks = plan().ranks
    domains = "[" + ",".join(format_mask(rank.cpus) for rank in reversed(ranks)) + "]"
    wrapper = ["sh", "-c", 'if [ "$PMI_RANK" = 0 ]; then exec "$@"; fi; "$@"; exit $?', "sh"]
    found = probe([*jobs.mpirun(2), *wrapper], env={"I_MPI_PIN_DOMAIN": domains})
    assert [rank["main"] for rank in found] == [list(rank.cpus) for rank in reversed(ranks)]


def test_a_mask_that_the_launcher_itself_has_is_shared() -> None:
    """Here one CPU for two ranks, which is said in one line."""
    plan()
    one = ["taskset", "-c", str(CPUS[-1]), *TORCHRUN]
    found = probe(one, warns="over-subscribed: 2 ranks share 1 core")
    assert [(rank["main"], rank["omp_threads"]) for rank in found] == [([CPUS[-1]], 1)] * 2


def test_in_a_container_with_a_quota_of_one_and_a_half(cgroup: ControlGroup) -> None:
    """One rank computes with one thread, unpinned, since a quota limits time and not cores; two are one too many."""
    plan()
    cgroup.limit("cpu", cpu__max="150000 100000", cpu__cfs_quota_us="150000")
    (alone,) = probe(cgroup.inside([]), ranks=1)
    assert (alone["main"], alone["omp_threads"]) == (CPUS, 1)
    two = probe(cgroup.inside(TORCHRUN), warns="over-subscribed: 2 ranks share a CPU quota of 1.5")
    assert [rank["omp_threads"] for rank in two] == [1, 1]


def test_no_pin_leaves_all_alone() -> None:
    found = probe(TORCHRUN, "--no-pin")
    assert [(rank["main"], rank["omp_threads"], rank["preloaded"]) for rank in found] == [(CPUS, 1, False)] * 2


def test_threads_and_allocator_that_the_user_has_set_stay() -> None:
    share = plan().ranks
    found = probe(TORCHRUN, env={"OMP_NUM_THREADS": "2", "MALLOC_ARENA_MAX": "2"}, warns="OMP_NUM_THREADS")
    assert [(rank["omp_threads"], rank["preloaded"]) for rank in found] == [(2, False)] * 2
    assert [rank["main"] for rank in found] == [list(rank.cpus) for rank in share]


def test_under_intel_mpi_with_standard_input_and_a_record(tmp_path: Path) -> None:
    """The process starts again with another allocator, and standard input is still there."""
    text, record = tmp_path / "input", tmp_path / "record.json"
    text.write_text("a line\n")
    launcher = ["sh", "-c", f'exec "$@" < {text}', "sh", *jobs.mpirun(2)]
    found = probe(launcher, "--record", str(record))
    check(found, plan())
    assert found[0]["stdin"] == "a line\n"
    for seen, share in zip(json.loads(record.read_text())["pinning"], plan().ranks, strict=True):
        assert (seen["cpus"], seen["omp_threads"]) == (list(share.cpus), share.omp_threads)


def test_it_starts_again_once_and_never_twice(tmp_path: Path) -> None:
    """Each start of the interpreter is recorded; processes that the rank starts do not start again."""
    if wanted_allocator({}) is None:
        pytest.skip("tcmalloc (Debian: libtcmalloc-minimal4) is not installed")
    starts = tmp_path / "starts"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os, sys\nopen({str(starts)!r}, 'a').write(f'{{os.getpid()}} {{sys.orig_argv[1:]}}\\n')\n"
    )
    child = [sys.executable, *jobs.train("--backend", "gloo", str(tmp_path / "child.py"), "two words")]
    (tmp_path / "child.py").write_text("")
    (tmp_path / "parent.py").write_text(f"import subprocess\nsubprocess.run({child}, check=True)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = jobs.train("--backend", "gloo", str(tmp_path / "parent.py"), "a", "b c")
    jobs.completed(command, timeout=100, env={"PYTHONPATH": path})
    lines = [line for line in starts.read_text().splitlines() if "cpudist-train" in line]
    parents, children = ([line for line in lines if name in line] for name in ("parent.py", "child.py"))
    assert (len(parents), len(set(parents)), len(children)) == (2, 1, 1), lines


def run_jobs(command: list[str], env: Mapping[str, str] | None = None) -> tuple[dict[str, Ranks], list[str]]:
    """Run a script that calls `cpudist.init`; return what its ranks say for each kind of job, and the warnings."""
    done = jobs.completed(command, 180, env)
    found: dict[str, Ranks] = {}
    for rank in ranks_of(done):
        found.setdefault(rank["kind"], []).append(rank)
    return found, [line for line in done.stderr.splitlines() if "warning: " in line]


def test_jobs_one_after_the_other_in_the_same_processes() -> None:
    """Each rank is where the plan has it during a job, and where it was before after it."""
    shares = plan().ranks
    found, (warning,) = run_jobs(jobs.torchrun(2, PLACEMENT, "plain", "off", "3"))
    for rank, share in zip(found["plain"], shares, strict=True):
        assert {cpu for mask in rank["during"]["masks"] for cpu in mask} <= set(share.cpus), rank
        assert rank["during"]["omp_threads"] == share.omp_threads
        assert rank["before"]["masks"][0] == rank["after"]["masks"][0] == rank["after"]["masks"][-1] == CPUS
        for name in ("omp_threads", "OMP_NUM_THREADS"):
            assert rank["after"][name] == rank["before"][name], name

    for rank in found["off"]:
        assert rank["before"]["masks"][0] == rank["during"]["masks"][-1] == CPUS
        assert rank["before"]["omp_threads"] == rank["during"]["omp_threads"] == 1

    assert [rank["during"]["omp_threads"] for rank in found["3"]] == [3, 3], "what the script has chosen stays"
    assert "3 threads share 1 CPU of a rank; set torch.set_num_threads to 1" in warning


def test_threads_that_openmp_has_bound_stay() -> None:
    plan()
    variables = {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "2"}
    found, warnings = run_jobs(jobs.torchrun(2, PLACEMENT, "plain"), variables)
    assert all(mask in rank["during"]["masks"] for rank in found["plain"] for mask in rank["before"]["masks"])
    assert warnings == []


def test_the_variable_is_named_where_mkl_has_lowered_its_number() -> None:
    """A guide's number of threads is for the guide's machines; torch takes as many as there are cores."""
    found, (line,) = run_jobs(jobs.mpirun(2, sys.executable, PLACEMENT, "off", "plain"), {"OMP_NUM_THREADS": "1000"})
    assert found["plain"][0]["during"]["omp_threads"] == found["off"][0]["during"]["omp_threads"]
    assert line.endswith(" of a rank; set OMP_NUM_THREADS to 1")


# A thread that other code has placed before, as an MPI library may do with its progress thread, stays there.
_OWN_PLAN = """
import os, threading
from cpudist import launchers
from cpudist.job import start_job
from cpudist.job.job_options import JobOptions
from cpudist.pinning import Pinning
from cpudist.pinning.plan import RankPlan

def thread():
    started = threading.Thread(target=done.wait, daemon=True)
    started.start()
    return started.native_id

before = os.sched_getaffinity(0)
first, second, *_ = sorted(before)
done = threading.Event()
placed, free = thread(), thread()
os.sched_setaffinity(placed, {second})
plan = RankPlan(0, (first,), 1, numa_nodes=(0,))
job = start_job(launchers.detect(), JobOptions(backend="ccl", timeout=60), Pinning(plan, bound=True))
places = ((0, {first}), (free, {first}), (placed, {second}))
print(*(os.sched_getaffinity(thread) == cpus for thread, cpus in places))
job.shutdown()
print(*(os.sched_getaffinity(thread) == cpus for thread, cpus in ((0, before), (free, before), (placed, {second}))))
done.set()
"""


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two cores")
def test_threads_move_unless_other_code_has_placed_them() -> None:
    assert jobs.completed([sys.executable, "-c", _OWN_PLAN], timeout=120).stdout == 2 * "True True True\n"
