"""Scripts that call `cpudist.init` themselves, under plain launchers: pinned while the job runs, and not after."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jobs
import pytest

from cpudist.topology.machine import this_machine
from cpudist.topology.pinning_plan import PlanOptions, RankPlan, make_plan

pytestmark = pytest.mark.job

SCRIPT = str(Path(__file__).parent / "checks" / "in_place.py")
CPUS = sorted(os.sched_getaffinity(0))

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def shares() -> tuple[RankPlan, ...]:
    """What two ranks of this machine get."""
    plan = make_plan(this_machine({}), PlanOptions(2))
    if len(CPUS) < 2 or not plan.pinned:
        pytest.skip("needs two cores, and no CPU quota")
    return plan.ranks


def run(command: list[str], env: Mapping[str, str] | None = None) -> tuple[dict[str, Ranks], list[str]]:
    """Run a job; return what each rank says of itself, in rank order, for each kind of job, and the warnings."""
    done = jobs.completed(command, 180, env)
    lines = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"rank"' in line]
    found: dict[str, Ranks] = {}
    for line in sorted(lines, key=lambda line: int(line["rank"])):
        found.setdefault(line["kind"], []).append(line)
    return found, [line for line in done.stderr.splitlines() if "warning: " in line]


def check(found: Ranks, shares: tuple[RankPlan, ...]) -> None:
    """Each rank is where the plan has it during the job, and where it was before after it."""
    assert len(found) == 2
    for rank, share in zip(found, shares, strict=True):
        assert {cpu for mask in rank["during"]["masks"] for cpu in mask} <= set(share.mask), rank
        assert rank["during"]["omp_threads"] == share.omp_threads
        assert rank["after"]["masks"][0] == rank["before"]["masks"][0]
        for name in ("omp_threads", "OMP_NUM_THREADS", "policy"):
            assert rank["after"][name] == rank["before"][name], name


@pytest.fixture(scope="module")
def under_torchrun(shares: tuple[RankPlan, ...]) -> tuple[dict[str, Ranks], list[str]]:
    """Three kinds of job, one after the other in the same processes."""
    return run(jobs.torchrun(2, SCRIPT, "plain", "off", "3"))


def test_every_thread_moves_and_goes_back(
    under_torchrun: tuple[dict[str, Ranks], list[str]], shares: tuple[RankPlan, ...]
) -> None:
    found, _ = under_torchrun
    check(found["plain"], shares)
    for rank in found["plain"]:
        assert rank["before"]["masks"][0] == rank["after"]["masks"][-1] == CPUS


def test_what_the_script_has_chosen_stays(under_torchrun: tuple[dict[str, Ranks], list[str]]) -> None:
    found, (warning,) = under_torchrun
    assert [rank["during"]["omp_threads"] for rank in found["3"]] == [3, 3]
    assert "3 threads share 1 CPU of a rank; set torch.set_num_threads to 1" in warning


def test_pin_false_leaves_masks_and_threads_alone(under_torchrun: tuple[dict[str, Ranks], list[str]]) -> None:
    found, _ = under_torchrun
    for rank in found["off"]:
        assert rank["before"]["masks"][0] == rank["during"]["masks"][-1] == CPUS
        assert rank["before"]["omp_threads"] == rank["during"]["omp_threads"] == 1


def test_threads_that_openmp_has_bound_stay(shares: tuple[RankPlan, ...]) -> None:
    found, warnings = run(jobs.torchrun(2, SCRIPT, "plain"), {"OMP_PROC_BIND": "true", "OMP_NUM_THREADS": "2"})
    assert all(mask in rank["during"]["masks"] for rank in found["plain"] for mask in rank["before"]["masks"])
    assert warnings == []


def test_the_variable_is_named_where_mkl_has_lowered_its_number() -> None:
    """A guide's number of threads is for the guide's machines; torch takes as many as there are cores."""
    found, (line,) = run(jobs.mpirun(2, sys.executable, SCRIPT, "off", "plain"), {"OMP_NUM_THREADS": "1000"})
    assert found["plain"][0]["during"]["omp_threads"] == found["off"][0]["during"]["omp_threads"]
    assert line.endswith(" of a rank; set OMP_NUM_THREADS to 1")
