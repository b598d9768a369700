"""Ranks that have a core for their communication, or for loading data, as the plans of larger machines give them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import jobs
import pytest

SCRIPT = str(Path(__file__).parent / "checks" / "planned.py")
CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two cores")


def ranks(command: list[str]) -> list[dict[str, Any]]:
    done = jobs.completed(command, 120)
    found = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"rank"' in line]
    return sorted(found, key=lambda rank: int(rank["rank"]))


@pytest.mark.job
def test_every_communication_thread_runs_on_its_core() -> None:
    """The first one, which starts before the job, and one that was started while the first was busy."""
    found = ranks(jobs.torchrun(2, SCRIPT))
    assert [len(rank["communication"]) for rank in found] == [2, 1]
    for rank in found:
        assert rank["main"] == [CPUS[0]]
        assert all(mask == [CPUS[1]] for mask in rank["communication"]), rank


@pytest.mark.job
def test_a_core_for_data_is_none_to_poll_on() -> None:
    (alone,) = ranks([sys.executable, SCRIPT, "data"])
    assert (alone["main"], alone["polls"]) == ([CPUS[0]], False)


@pytest.mark.job
def test_a_thread_that_other_code_has_placed_stays_there() -> None:
    """An MPI library may pin its progress thread."""
    program = """if True:
        import os, threading
        from cpudist.changes import Changes
        from cpudist.pinning import Pinning
        from cpudist.topology.pinning_plan import RankPlan

        def thread():
            started = threading.Thread(target=done.wait)
            started.start()
            return started.native_id

        first, second, *_ = sorted(os.sched_getaffinity(0))
        done = threading.Event()
        placed, free = thread(), thread()
        os.sched_setaffinity(placed, {second})
        Pinning(RankPlan(0, (first,), 1, numa_nodes=(0,)), True).bind(Changes())
        print(os.sched_getaffinity(placed) == {second}, os.sched_getaffinity(free) == {first})
        done.set()
    """
    assert jobs.run([sys.executable, "-c", program], timeout=60).stdout == "True True\n"
