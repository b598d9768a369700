"""A plan followed without cpudist: real launchers are given what it says, and the ranks' masks are read back."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jobs
import pytest
from layouts import FOLDER

from cpudist.machine.description import Machine, machine_from, this_machine
from cpudist.placement import intel_mpi, mpich, openmpi, slurm
from cpudist.placement.by_hand import by_hand
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Plan, RankPlan, Wishes

_ASK = r"""
import os
rank = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
words = ["cpus", rank, *map(str, sorted(os.sched_getaffinity(0)))]
os.write(1, (" ".join(words) + "\n").encode())  # in one piece: ranks write at once
"""


def reversed_plan() -> Plan:
    """Two ranks, the first on the last cores: no launcher would do that by itself."""
    ranks = make_plan(this_machine({}), Wishes(2)).ranks
    if {*ranks[0].mask} & {*ranks[1].mask}:
        pytest.skip("needs two cores")
    swapped = (RankPlan(0, ranks[1].cpus, ranks[1].omp_threads), RankPlan(1, ranks[0].cpus, ranks[0].omp_threads))
    return Plan(swapped)


def masks(command: list[str], env: dict[str, str]) -> dict[int, tuple[int, ...]]:
    """The mask of each rank that `command` starts."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = jobs.run([*command, sys.executable, "-c", _ASK], 60, {"PYTHONUNBUFFERED": "1", **env})
    assert done.returncode == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("cpus")]
    return {int(words[1]): tuple(map(int, words[2:])) for words in lines}


def test_real_launchers_do_what_the_plan_says(tmp_path: Path) -> None:
    plan = reversed_plan()
    file = tmp_path / "rankfile"
    file.write_text(openmpi.rankfile(plan, "localhost"))
    ours = {0: plan.ranks[0].mask, 1: plan.ranks[1].mask}
    intel = [str(jobs.BIN / "mpirun"), *intel_mpi.arguments(plan)]
    assert masks(intel, intel_mpi.environment(plan)) == ours
    assert masks(["mpirun.mpich", *mpich.arguments(plan)], {}) == ours
    open_mpi = ["mpirun.openmpi", "--allow-run-as-root", *openmpi.arguments(plan, str(file))]
    assert masks(open_mpi, {}) == ours


def big() -> Machine:
    return machine_from(FOLDER / "xeon-2s-8c2t.sysfs.tar.xz")


def test_the_words_for_each_launcher() -> None:
    plan = make_plan(big(), Wishes("socket"))
    hand = by_hand(plan, {})
    masks = ["0xff", "0xff00"]
    assert hand.variables == {
        "OMP_NUM_THREADS": "7",
        "I_MPI_PIN_DOMAIN": f"[{','.join(masks)}]",
        "CCL_WORKER_COUNT": "1",
        "CCL_WORKER_AFFINITY": "7,15",
    }
    assert slurm.arguments(plan) == ["--ntasks-per-node=2", f"--cpu-bind=mask_cpu:{','.join(masks)}"]
    assert mpich.arguments(plan)[-1] == "user:0+1+2+3+4+5+6+7,8+9+10+11+12+13+14+15"
    assert hand.rankfile.splitlines()[1] == "rank 1=localhost slot=8-15"


def test_without_a_core_for_it_no_worker_of_its_own() -> None:
    assert by_hand(make_plan(big(), Wishes(16)), {}).variables["CCL_WORKER_OFFLOAD"] == "0"


def test_ranks_that_are_not_pinned_are_not_pinned_by_hand_either() -> None:
    plan = Plan((RankPlan(0, (0,), 1), RankPlan(1, (1,), 1)), pinned=False)
    hand = by_hand(plan, {})
    assert hand.variables["I_MPI_PIN"] == "off"
    assert "-bind-to none" in hand.commands["MPICH"]
    assert "--bind-to none" in hand.commands["Open MPI"]
    assert "--cpu-bind=none" in hand.commands["Slurm"]


@pytest.mark.parametrize(
    ("env", "absent", "said"),
    [
        ({"I_MPI_PIN_DOMAIN": "core"}, "I_MPI_PIN_DOMAIN", "I_MPI_PIN_DOMAIN=core is set and stays; the plan has"),
        ({"I_MPI_PIN_PROCESSOR_LIST": "0,1"}, "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST=0,1 is set and stays"),
        ({"CCL_WORKER_COUNT": "4"}, "CCL_WORKER_COUNT", "CCL_WORKER_COUNT=4 is set and stays; the plan has 1"),
        ({"OMP_NUM_THREADS": "7"}, "OMP_NUM_THREADS", ""),
    ],
)
def test_what_is_set_stays(env: dict[str, str], absent: str, said: str) -> None:
    hand = by_hand(make_plan(big(), Wishes("socket")), env)
    assert absent not in hand.variables
    assert [line for line in hand.kept if line.startswith(said)][:1] == list(hand.kept)
