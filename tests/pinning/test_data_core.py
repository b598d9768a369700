"""Ranks that have a core for loading data, as in plans of larger machines, and threads that other code places."""

import os
import sys

import jobs
import pytest

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two cores")


@pytest.mark.job
def test_a_core_for_data_is_none_to_poll_on() -> None:
    program = """if True:
        import os
        from cpudist import launchers
        from cpudist.backends.ccl import extension
        from cpudist.job import start_job
        from cpudist.job.job_options import JobOptions
        from cpudist.pinning import Pinning
        from cpudist.topology.pinning_plan import RankPlan

        first, second, *_ = sorted(os.sched_getaffinity(0))
        plan = RankPlan(0, (first,), 1, data_cpus=(second,), numa_nodes=(0,))
        job = start_job(launchers.detect(), JobOptions(backend="ccl", timeout=60), Pinning(plan, bound=True))
        print(extension.load().polls(), os.sched_getaffinity(0) == {first})
        job.shutdown()
    """
    assert jobs.completed([sys.executable, "-c", program], timeout=120).stdout == "False True\n"


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
