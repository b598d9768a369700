"""An exported plan: mpirun runs with its variables, and the ranks report their affinity masks."""

from __future__ import annotations

import sys

import jobs
import pytest
from layouts import machine_of

from cpudist.launchers.export import export
from cpudist.launchers.intel_mpi import pinning_variables
from cpudist.topology.machine import Machine, this_machine
from cpudist.topology.pinning_plan import Plan, PlanOptions, RankPlan, make_plan

_ASK = r"""
import os
words = ["cpus", os.environ["PMI_RANK"], *map(str, sorted(os.sched_getaffinity(0)))]
os.write(1, (" ".join(words) + "\n").encode())  # in one piece: ranks write at once
"""


def reversed_plan() -> Plan:
    """Two ranks, the first on the last cores: no launcher would do that by itself."""
    ranks = make_plan(this_machine({}), PlanOptions(2)).ranks
    if {*ranks[0].mask} & {*ranks[1].mask}:
        pytest.skip("needs two cores")
    swapped = (RankPlan(0, ranks[1].cpus, ranks[1].omp_threads), RankPlan(1, ranks[0].cpus, ranks[0].omp_threads))
    return Plan(swapped)


def masks(command: list[str], env: dict[str, str]) -> dict[int, tuple[int, ...]]:
    """The mask of each rank that `command` starts."""
    done = jobs.run([*command, sys.executable, "-c", _ASK], 60, env)
    assert done.returncode == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("cpus")]
    return {int(words[1]): tuple(map(int, words[2:])) for words in lines}


@pytest.mark.job
def test_intels_mpirun_does_what_the_plan_says() -> None:
    plan = reversed_plan()
    ours = {0: plan.ranks[0].mask, 1: plan.ranks[1].mask}
    assert masks([str(jobs.BIN / "mpirun"), "-n", "2"], pinning_variables(plan)) == ours


def big() -> Machine:
    return machine_of("xeon-2s-8c2t.sysfs.tar.xz")


def test_the_variables() -> None:
    plan = make_plan(big(), PlanOptions("socket"))
    variables, _ = export(plan, {})
    masks = ["0xff", "0xff00"]
    assert variables == {
        "OMP_NUM_THREADS": "8",
        "I_MPI_PIN_DOMAIN": f"[{','.join(masks)}]",
        "CCL_WORKER_OFFLOAD": "0",
    }


def test_ranks_that_are_not_pinned_are_not_pinned_by_hand_either() -> None:
    plan = Plan((RankPlan(0, (0,), 1), RankPlan(1, (1,), 1)), pinned=False)
    assert export(plan, {})[0]["I_MPI_PIN"] == "off"


@pytest.mark.parametrize(
    ("env", "absent", "said"),
    [
        ({"I_MPI_PIN_DOMAIN": "core"}, "I_MPI_PIN_DOMAIN", "I_MPI_PIN_DOMAIN=core is set and stays"),
        ({"I_MPI_PIN_PROCESSOR_LIST": "0,1"}, "I_MPI_PIN_DOMAIN", "I_MPI_PIN_PROCESSOR_LIST=0,1 is set and stays"),
        ({"CCL_WORKER_OFFLOAD": "1"}, "CCL_WORKER_OFFLOAD", "CCL_WORKER_OFFLOAD=1 is set and stays"),
        ({"OMP_NUM_THREADS": "7"}, "OMP_NUM_THREADS", ""),
    ],
)
def test_what_is_set_stays(env: dict[str, str], absent: str, said: str) -> None:
    variables, kept = export(make_plan(big(), PlanOptions("socket")), env)
    assert absent not in variables
    assert kept == ([said] if said else [])


def test_a_user_who_sets_several_keeps_all_of_them() -> None:
    variables, kept = export(make_plan(big(), PlanOptions("socket")), {"I_MPI_PIN": "1", "CCL_WORKER_COUNT": "4"})
    assert not {"I_MPI_PIN_DOMAIN", "CCL_WORKER_COUNT"} & variables.keys()
    assert len(kept) == 2
