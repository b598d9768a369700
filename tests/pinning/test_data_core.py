"""Ranks that have a core for loading data, as in plans of larger machines, and threads that other code places."""

import json
import os
import sys
from pathlib import Path

import jobs
import pytest

SCRIPT = str(Path(__file__).parent / "checks" / "planned.py")
CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two cores")


@pytest.mark.job
def test_a_core_for_data_is_none_to_poll_on() -> None:
    alone = json.loads(jobs.completed([sys.executable, SCRIPT], 120).stdout)
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
