"""A rank's part of its node, as pure functions: on machines that are not here."""

import os
import sys
from pathlib import Path

import jobs
import pytest

from cpudist import launchers
from cpudist.pinning import decide, threads_of_user
from cpudist.pinning.plan import PlanOptions
from cpudist.pinning.preload import wanted_allocator
from cpudist.pinning.rank_cpus import Starter, own_share
from cpudist.topology import Cpu, assemble
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine

CPUS = sorted(os.sched_getaffinity(0))
NODE = frozenset(range(128))  # 64 cores with two hardware threads, on two NUMA nodes


def machine(allowed: frozenset[int] = NODE, quota: float | None = None) -> Machine:
    cpus = [Cpu(core + 64 * thread, core, core // 32, core // 32) for core in range(64) for thread in (0, 1)]
    return Machine(assemble(cpus), Limits(allowed, quota))


def socket(number: int) -> frozenset[int]:
    """The CPUs of a NUMA node: both hardware threads of its cores."""
    return frozenset(range(32 * number, 32 * number + 32)) | frozenset(range(32 * number + 64, 32 * number + 96))


@pytest.mark.parametrize(
    ("allowed", "rank", "ranks", "cores"),
    [
        (NODE, 0, 2, range(32)),  # as under torchrun: no core is wasted
        (NODE, 1, 2, range(32, 64)),
        (socket(1), 1, 2, range(32, 64)),  # Intel MPI pins; one hardware thread of each core computes
        (NODE, 0, 1, range(64)),
    ],
)
def test_cores(allowed: frozenset[int], rank: int, ranks: int, cores: range) -> None:
    share = own_share(machine(allowed), NODE, rank, ranks, PlanOptions())
    assert (share.plan.cpus, share.plan.omp_threads) == (tuple(cores), len(cores))
    assert share.plan.numa_nodes == ((0, 1) if ranks == 1 else (rank,))
    assert (share.plan.rank, share.bound, share.hint) == (rank, True, "")


@pytest.mark.parametrize(
    ("allowed", "quota", "ranks", "threads", "bind", "hint"),
    [
        (frozenset({1, 65}), None, 2, 1, True, "--bind-to none"),  # Open MPI's default for two ranks
        (socket(0), None, 4, 16, False, ""),  # two of them on each socket
        (socket(0), 8.0, 2, 4, False, ""),  # a quota limits time, not cores
        (NODE, 1.5, 2, 1, False, "over-subscribed: 2 ranks share a CPU quota of 1.5"),
    ],
)
def test_threads_and_hints(
    allowed: frozenset[int], quota: float | None, ranks: int, threads: int, bind: bool, hint: str
) -> None:
    share = own_share(machine(allowed, quota), NODE, 0, ranks, PlanOptions())
    assert (share.plan.omp_threads, share.bound) == (threads, bind)
    assert hint in share.hint if hint else not share.hint


def test_too_many_threads_are_said_also_where_the_launcher_has_pinned() -> None:
    share = own_share(machine(frozenset(range(32))), NODE, 0, 2, PlanOptions(omp_threads=64))
    assert share.hint.startswith("over-subscribed: 64 threads share 32 CPUs of a rank")


def test_the_one_thread_that_torchrun_sets_is_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the second of two ranks of a machine with 64 cores."""
    variables = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
    variables |= {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cpudist.pinning.this_machine", machine)
    monkeypatch.setattr("cpudist.pinning.starter_of", lambda variable: Starter(NODE, {}))
    pinning = decide(launchers.detect())
    assert pinning is not None
    assert pinning.plan.omp_threads == 32


@pytest.mark.parametrize(
    ("variables", "starters", "by_torchrun", "expected"),
    [
        ({"OMP_NUM_THREADS": "1"}, {}, True, None),  # torchrun's own
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "1"}, True, (1, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "4"}, {}, True, (4, "OMP_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, {}, True, (1, "MKL_NUM_THREADS")),
        ({"OMP_NUM_THREADS": "1"}, {}, False, (1, "OMP_NUM_THREADS")),
        ({}, {}, True, None),
        ({"OMP_NUM_THREADS": ""}, {}, True, None),
        ({"OMP_NUM_THREADS": "4,2"}, {}, True, None),
        ({"OMP_NUM_THREADS": "0"}, {}, True, None),
    ],
)
def test_whose_word_the_number_of_threads_is(
    variables: dict[str, str], starters: dict[str, str], by_torchrun: bool, expected: tuple[int, str] | None
) -> None:
    launcher = launchers.detect({"TORCHELASTIC_RUN_ID" if by_torchrun else "I_MPI_HYDRA_UUID": "x", "PMI_RANK": "0"})
    assert threads_of_user(launcher, variables, Starter(NODE, starters)) == expected


@pytest.mark.job
def test_the_starter_has_not_this_ranks_variable() -> None:
    """A shell between this process, which stands for the launcher, and the rank has the rank's variable as well."""
    program = """if True:
        from cpudist.pinning.rank_cpus import starter_of
        for name in ("CPUDIST_TEST_RANK", None):
            starter = starter_of(name)
            print(starter.variables.get("CPUDIST_TEST_RANK"), sorted(starter.cpus))
    """
    shell = ["taskset", "-c", str(CPUS[-1]), "sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", program]
    done = jobs.run(shell, 60, {"CPUDIST_TEST_RANK": "7"})
    assert done.stdout.splitlines() == [f"None {CPUS}", f"7 {CPUS[-1:]}"]


def test_whoever_has_decided_on_an_allocator_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "lib" / "libtcmalloc_minimal.so.4"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert wanted_allocator({}) == library
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF", "MALLOC_ARENA_MAX"):
        assert wanted_allocator({name: "x"}) is None
