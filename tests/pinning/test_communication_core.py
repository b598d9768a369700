"""Ranks that have a core for their communication, or for loading data, as the plans of larger machines give them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jobs
import pytest
from torch.utils.data import DataLoader

from cpudist.pinning import Pinning
from cpudist.pinning.observe import Observed, cpu_seconds, lacks_data_cores, mismatch, observe
from cpudist.pinning.threads import Thread
from cpudist.topology.pinning_plan import RankPlan

SCRIPT = str(Path(__file__).with_name("planned.py"))
CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two cores")


def ranks(command: list[str]) -> list[dict[str, Any]]:
    done = jobs.run(command, 120)
    assert done.returncode == 0, done.output
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
        assert rank["mismatch"] == ""


@pytest.mark.job
def test_a_core_for_data_is_none_to_poll_on() -> None:
    (alone,) = ranks([sys.executable, SCRIPT, "data"])
    assert (alone["main"], alone["polls"], alone["mismatch"]) == ([CPUS[0]], False, "")


def test_communication_that_leaves_its_core_is_named() -> None:
    pinning = Pinning(RankPlan(0, (0, 1), 2, communication_cpus=(2,), numa_nodes=(0,)), bound=True)
    main = ("main", Thread(1, "python", 0.0, frozenset({0, 1}), 0))
    here = Observed((main, ("communication", Thread(2, "cpudist-ccl", 0.0, frozenset({2}), 2))), {})
    assert mismatch(pinning, here) == ""
    strays = Observed((main, ("communication", Thread(2, "cpudist-ccl", 0.0, frozenset({0, 1}), 1))), {})
    assert mismatch(pinning, strays) == "its communication may leave the CPUs 2 that are kept for it"


def test_a_thread_computes_if_it_is_busy_in_steps_and_not_the_jobs_own() -> None:
    def compute() -> None:
        while time.thread_time() < 0.1:
            hashlib.sha256(bytes(1 << 20))
        computed.set()
        done.wait()

    computed, done = threading.Event(), threading.Event()
    before = cpu_seconds()
    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert computed.wait(60)
        assert thread.native_id is not None
        pinning = Pinning(RankPlan(0, (0,), 1, numa_nodes=(0,)), bound=False)
        of_job = dataclasses.replace(pinning, of_job=frozenset({thread.native_id}))
        after = cpu_seconds()
        assert mismatch(pinning, observe(pinning, before)) == "2 threads compute on 1 CPU"
        assert mismatch(of_job, observe(of_job, before)) == ""
        assert mismatch(pinning, observe(pinning)) == "", "without known steps nothing is said"
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            hashlib.sha256(bytes(1 << 20))
        assert mismatch(pinning, observe(pinning, after)) == "", "it worked before the steps"
    finally:
        done.set()
        thread.join()


@pytest.mark.job
def test_processes_that_load_data_are_seen() -> None:
    """Also those that a script starts in its code: no command line names them."""
    batches = iter(DataLoader(range(8), num_workers=2))
    next(batches)
    roomy = Pinning(RankPlan(0, (0, 1, 2, 3), 4, numa_nodes=(0,)), bound=False)
    seen = observe(roomy)
    assert seen.data_workers == 2
    assert lacks_data_cores(roomy, seen)
    assert not lacks_data_cores(Pinning(RankPlan(0, (0, 1, 2), 3, data_cpus=(3,), numa_nodes=(0,)), bound=False), seen)
    assert not lacks_data_cores(Pinning(RankPlan(0, (0, 1), 2, numa_nodes=(0,)), bound=False), seen)
    assert not lacks_data_cores(roomy, dataclasses.replace(seen, data_workers=0))


@pytest.mark.job
def test_a_thread_that_was_placed_before_is_nobodys_mistake() -> None:
    """An MPI library may pin its progress thread; a thread that leaves its cores later is reported."""
    program = """if True:
        import os, threading
        from cpudist.changes import Changes
        from cpudist.pinning import Pinning
        from cpudist.pinning.observe import mismatch, observe
        from cpudist.topology.pinning_plan import RankPlan

        def thread_on(cpu):
            thread = threading.Thread(target=done.wait)
            thread.start()
            os.sched_setaffinity(thread.native_id, {cpu})

        first, second, *_ = sorted(os.sched_getaffinity(0))
        done = threading.Event()
        thread_on(second)
        pinning = Pinning(RankPlan(0, (first,), 1, numa_nodes=(0,)), True).bind(Changes())
        print("before:", mismatch(pinning, observe(pinning)))
        thread_on(second)
        print("after:", mismatch(pinning, observe(pinning)))
        done.set()
    """
    before, after = jobs.run([sys.executable, "-c", program], timeout=60).stdout.splitlines()
    assert before == "before: "
    assert after.startswith("after: threads may leave its CPUs")
