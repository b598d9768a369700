"""Starts a ccl job with a plan as larger machines have it; prints where its threads may run as JSON.

Each rank computes on the first CPU. The second one is for communication, or with an argument for data workers.
"""

import json
import os
import sys

import torch
import torch.distributed as dist

from cpudist import launchers
from cpudist.backends.ccl import ccl_group, extension
from cpudist.job import start_job
from cpudist.job.job_options import JobOptions
from cpudist.pinning import Pinning
from cpudist.pinning.threads import COMMUNICATION_THREAD, threads
from cpudist.topology.pinning_plan import RankPlan

CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = (CPUS[0],), (CPUS[1],)


def two_threads(rank: int) -> None:
    """Have rank 0's engine make a second thread: the first one is in a callback when there is work to do."""
    store = dist.distributed_c10d._get_default_store()

    def call_again(_: torch.futures.Future[object]) -> None:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        store.set("called again", "")
        work.wait()

    if rank == 0:
        future = dist.all_reduce(torch.ones(4), async_op=True).get_future().then(call_again)
        store.set("waiting", "")
        future.wait()
    else:
        store.wait(["waiting"])
        dist.all_reduce(torch.ones(4))
        store.wait(["called again"])
        dist.all_reduce(torch.ones(4))


def main() -> None:
    launcher = launchers.detect(os.environ)
    rank = launcher.placement().rank
    if "data" in sys.argv:
        plan = RankPlan(rank, FIRST, 1, data_cpus=SECOND, numa_nodes=(0,))
    else:
        plan = RankPlan(rank, FIRST, 1, communication_cpus=SECOND, numa_nodes=(0,))
        ccl_group.cores_to_spare = lambda *_: 1  # two ranks share these two CPUs
    job = start_job(launcher, JobOptions(backend="ccl", timeout=60), Pinning(plan, bound=True))
    if job.world.size == 2:
        two_threads(rank)
    found = {
        "rank": rank,
        "polls": extension.load().polls(),
        "main": sorted(os.sched_getaffinity(0)),
        "communication": [sorted(thread.mask) for thread in threads() if thread.name == COMMUNICATION_THREAD],
    }
    sys.stdout.write(json.dumps(found) + "\n")
    job.shutdown()


main()
