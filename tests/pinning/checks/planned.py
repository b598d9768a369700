"""Starts a ccl job of one rank that computes on the first CPU and loads data on the second; prints JSON."""

import json
import os
import sys

from cpudist import launchers
from cpudist.backends.ccl import extension
from cpudist.job import start_job
from cpudist.job.job_options import JobOptions
from cpudist.pinning import Pinning
from cpudist.topology.pinning_plan import RankPlan

CPUS = sorted(os.sched_getaffinity(0))
FIRST, SECOND = (CPUS[0],), (CPUS[1],)


def main() -> None:
    launcher = launchers.detect(os.environ)
    plan = RankPlan(0, FIRST, 1, data_cpus=SECOND, numa_nodes=(0,))
    job = start_job(launcher, JobOptions(backend="ccl", timeout=60), Pinning(plan, bound=True))
    found = {"polls": extension.load().polls(), "main": sorted(os.sched_getaffinity(0))}
    sys.stdout.write(json.dumps(found) + "\n")
    job.shutdown()


main()
