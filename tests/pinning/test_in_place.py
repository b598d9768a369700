"""Scripts that call `cpudist.init` themselves, under plain launchers: pinned while the job runs, and not after."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jobs
import pytest
from slurm_node import slurm_node

from cpudist.machine.cpulist import format_mask
from cpudist.machine.description import this_machine
from cpudist.placement.place import make_plan
from cpudist.placement.plan import RankPlan, Wishes

SCRIPT = str(Path(__file__).with_name("in_place.py"))
CPUS = sorted(os.sched_getaffinity(0))
TORCHRUN = jobs.torchrun(2, SCRIPT)
MPIRUN = jobs.mpirun(2, sys.executable, SCRIPT)


@pytest.fixture
def shares() -> tuple[RankPlan, ...]:
    """What two ranks of this machine get."""
    plan = make_plan(this_machine({}), Wishes(2))
    if len(CPUS) < 2 or not plan.pinned:
        pytest.skip("needs two cores, and no CPU quota")
    return plan.ranks


def ranks(command: list[str], env: Mapping[str, str] | None = None, warns: str = "") -> list[dict[str, Any]]:
    """What each rank found of itself, in rank order."""
    done = jobs.run(command, 120, {"PYTHONUNBUFFERED": "1", **(env or {})})
    assert done.returncode == 0, done.output
    assert done.stderr.count("warning: ") == bool(warns), done.output
    assert warns in done.stderr, done.output
    found = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"rank"' in line]
    return sorted(found, key=lambda rank: int(rank["rank"]))


def check(found: list[dict[str, Any]], shares: tuple[RankPlan, ...]) -> None:
    assert len(found) == 2
    for rank, share in zip(found, shares, strict=True):
        assert {cpu for mask in rank["during"]["masks"] for cpu in mask} <= set(share.mask), rank
        assert rank["during"]["omp_threads"] == share.omp_threads
        assert rank["after"]["masks"][0] == rank["before"]["masks"][0]
        for name in ("omp_threads", "OMP_NUM_THREADS", "policy", "inter_op"):
            assert rank["after"][name] == rank["before"][name], name


@pytest.mark.parametrize(
    ("command", "env"), [(TORCHRUN, {}), (MPIRUN, {"I_MPI_PIN": "off"})], ids=["torchrun", "mpirun"]
)
def test_every_thread_moves_and_goes_back(
    command: list[str], env: dict[str, str], shares: tuple[RankPlan, ...]
) -> None:
    found = ranks(command, env)
    check(found, shares)
    for rank in found:
        assert rank["before"]["masks"][0] == rank["after"]["masks"][-1] == CPUS


def test_srun(tmp_path: Path, shares: tuple[RankPlan, ...]) -> None:
    with slurm_node(tmp_path) as variables:
        path = f"{jobs.BIN}{os.pathsep}{variables['PATH']}"
        srun = ["srun", "--ntasks=2", "--mpi=none", "--cpu-bind=none", sys.executable, SCRIPT]
        check(ranks(srun, {**variables, "PATH": path}), shares)


def test_what_the_launcher_has_pinned_stays(shares: tuple[RankPlan, ...]) -> None:
    """Intel MPI is told to give rank 0 the last CPUs."""
    domains = "[" + ",".join(format_mask(share.mask) for share in reversed(shares)) + "]"
    check(ranks(MPIRUN, {"I_MPI_PIN_DOMAIN": domains}), tuple(reversed(shares)))


def test_what_the_script_or_the_user_has_chosen_stays(shares: tuple[RankPlan, ...]) -> None:
    """Three threads by torch.set_num_threads, and threads that OpenMP has bound."""
    chosen = ranks([*TORCHRUN, "3"], warns="3 threads share 1 CPU of a rank; set torch.set_num_threads to 1")
    assert [rank["during"]["omp_threads"] for rank in chosen] == [3, 3]
    bound = ranks(TORCHRUN, {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "2"})
    assert all(mask in rank["during"]["masks"] for rank in bound for mask in rank["before"]["masks"])


@pytest.mark.parametrize(("before", "expected"), [("", "1"), ("torch.set_num_interop_threads(3)", "3")])
def test_one_inter_op_thread_unless_the_script_has_chosen(before: str, expected: str) -> None:
    program = f"""if True:
        import torch
        from cpudist.job.pinned import limit_inter_op
        from cpudist.placement.plan import RankPlan
        {before}
        limit_inter_op(RankPlan(0, (0,), 1))
        print(torch.get_num_interop_threads())
    """
    done = jobs.run([sys.executable, "-c", program], timeout=60)
    assert done.stdout.strip() == expected, done.output


def test_pin_false_leaves_all_alone(shares: tuple[RankPlan, ...]) -> None:
    for rank in ranks([*TORCHRUN, "off"]):
        assert rank["before"]["masks"][0] == rank["during"]["masks"][-1] == CPUS
        assert rank["before"]["omp_threads"] == rank["during"]["omp_threads"] == 1


def test_a_thread_that_leaves_its_cores_is_named(shares: tuple[RankPlan, ...]) -> None:
    ranks([*TORCHRUN, "stray"], warns="rank 1 on ")
