"""Make this rank follow its pinning, and compare it with its plan while it trains."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from cpudist.changes import Changes
from cpudist.console import say
from cpudist.launchers import Launcher
from cpudist.pinning import Pinning, decide
from cpudist.pinning.observe import Observed, cpu_seconds, lacks_data_cores, mismatch, observe
from cpudist.topology import thread_variables
from cpudist.topology.machine import this_machine

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.job.record import RunRecord
    from cpudist.world import World

# Keys of the store.
_KEY = "cpudist/pinning/{rank}"
_WARNED = "cpudist/pinning/warned"

_BY_SCRIPT = "torch.set_num_threads"
_STEPS = 3  # the first one warms up and is not looked at
_SECONDS = 0.2  # of CPU time of the busiest thread: less does not show which threads compute


def decide_in_place(launcher: Launcher) -> Pinning | None:
    """Return the pinning of a script that calls `cpudist.init` itself; None where the script must not be pinned.

    A number of threads that the script has chosen is kept. If a variable made OpenMP bind its threads, it did so when
    torch was imported, and this process no longer shows the CPUs that it may use.
    """
    if any(name in os.environ for name in thread_variables.BINDING):
        return None
    return decide(launcher, sys.argv, _chosen_threads())


def follow(pinning: Pinning, changes: Changes) -> Pinning:
    """Move this rank's threads to its cores and set torch's number of threads, until `changes` are undone.

    Returns:
        The pinning with what `Pinning.bind` has found.
    """
    import torch

    changes.variable(thread_variables.THREADS, str(pinning.plan.omp_threads))  # for processes that the rank starts
    before = torch.get_num_threads()
    if before != pinning.plan.omp_threads:
        torch.set_num_threads(pinning.plan.omp_threads)
        changes.then(lambda: torch.set_num_threads(before))
    return pinning.bind(changes)


def _chosen_threads() -> tuple[int, str] | None:
    """Return torch's number of threads and who has set it; None if it is torch's default, or that of a variable."""
    import torch

    found = torch.get_num_threads()
    given = thread_variables.threads_set(os.environ)
    if given is None:
        usable = this_machine().usable
        return None if found in (len(usable.cpus), len(usable.cores)) else (found, _BY_SCRIPT)
    number, variable = given
    if found == number:
        return None
    # MKL, which torch asks where it is built with it, lowers a variable's number to that of the machine's cores.
    lowered = found == len(this_machine().topology.cores) < number
    return found, variable if lowered else _BY_SCRIPT


class PinningCheck:
    """Compare this rank with its plan, once; on rank 0 collect what all ranks have found.

    Args:
        pinning: what was assigned to this rank.
        world: this rank's place in the job.
        store: the key-value store that all ranks share.
        record: the run record.

    Attributes:
        looked: whether this rank has been compared with its plan.
    """

    def __init__(self, pinning: Pinning, world: World, store: Store, record: RunRecord) -> None:
        self._pinning = pinning
        self._world = world
        self._store = store
        self._record = record
        self._steps = 0
        self._look_at = _STEPS
        self._since: dict[int, float] = {}
        self.looked = False

    def step_done(self) -> None:
        """Note the end of a training step; look at this rank once some steps have shown which threads compute."""
        if self.looked:
            return
        self._steps += 1
        if self._steps == 1:
            self._since = cpu_seconds()
        elif self._steps == self._look_at:
            self._look_at *= 2  # looking takes longer than a very short step
            used = (seconds - self._since.get(thread, 0.0) for thread, seconds in cpu_seconds().items())
            if max(used) >= _SECONDS:
                self._look(observe(self._pinning, self._since))

    def finish(self) -> None:
        """Look at this rank at the end of the job, unless it has been done. Threads that compute are not counted."""
        if not self.looked:
            self._look(observe(self._pinning))

    def _look(self, seen: Observed) -> None:
        """Compare this rank with its plan; one rank of the job prints a warning."""
        self.looked = True
        world, store, plan = self._world, self._store, self._pinning.plan
        found = {"communication_cpus": list(plan.communication_cpus), "bound": self._pinning.bound, **seen.as_dict()}
        store.set(_KEY.format(rank=world.rank), json.dumps(found))
        line = self._advice(seen)
        if line and store.add(_WARNED, 1) == 1:
            say(f"warning: rank {world.rank} on {world.hosts[world.node_rank]} {line}")

    def _advice(self, seen: Observed) -> str:
        """Return what differs from the plan, or could have been planned, with the remedy; empty if there is nothing."""
        if wrong := mismatch(self._pinning, seen, openmp=self._world.device_type == "cpu"):
            remedy = "cpudist-train --no-pin, or cpudist.init(pin=False),"
            return f"does not run as planned: {wrong}; {remedy} leaves masks and threads alone"
        if lacks_data_cores(self._pinning, seen):
            command = f"cpudist-train --data-workers {seen.data_workers}"
            return f"has {seen.data_workers} processes that load data on the cores that compute; {command} keeps cores"
        return ""

    def collect(self) -> None:
        """Put what every rank has seen into the record, on rank 0, after all ranks have finished."""
        if self._world.rank != 0:
            return
        for rank in range(self._world.size):
            key = _KEY.format(rank=rank)
            if self._store.check([key]):
                self._record.observed(rank, json.loads(self._store.get(key)))
