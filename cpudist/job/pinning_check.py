"""Whether each rank got what the plan gave it: looked at once it trains, for the run record and a warning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cpudist.console import say
from cpudist.job.pinned import limit_inter_op
from cpudist.pinning.observe import Observed, mismatch, not_counted_in, observe

if TYPE_CHECKING:
    from cpudist.job.job import Job
    from cpudist.pinning import Pinning

_KEY = "cpudist/pinning/{rank}"
_WARNED = "cpudist/pinning/warned"


class PinningCheck:
    """One look at this rank, and on rank 0 what all ranks have seen.

    Args:
        job: the running job.
        pinning: what this rank was given.
    """

    def __init__(self, job: Job, pinning: Pinning) -> None:
        self._job = job
        self._pinning = pinning
        self._looked = False

    def look(self) -> None:
        """Compare this rank with its plan, the first time that this is called; one rank alone warns."""
        if self._looked:
            return
        self._looked = True
        world, store, plan = self._job.world, self._job.meeting.store, self._pinning.plan
        if self._job.held:  # by cpudist-train, whose process this is: torch never gives the number back
            limit_inter_op(plan)  # and not before: the script's own number, if it has one, comes first
        seen = observe(self._pinning)
        found = {"communication_cpus": list(plan.communication_cpus), "bound": self._pinning.bound, **seen.as_dict()}
        store.set(_KEY.format(rank=world.rank), json.dumps(found))
        line = self._advice(seen)
        if line and store.add(_WARNED, 1) == 1:
            say(f"warning: rank {world.rank} on {world.hosts[world.node_rank]} {line}")

    def _advice(self, seen: Observed) -> str:
        """What is not as planned, or could have been planned, and what to do about it; nothing where all is well."""
        if wrong := mismatch(self._pinning, seen, openmp=self._job.world.device_type == "cpu"):
            remedy = "--no-pin" if self._job.held else "cpudist.init(pin=False)"
            return f"does not run as planned: {wrong}; {remedy} leaves all alone"
        if not_counted_in(self._pinning, seen):
            command = f"cpudist-train --data-workers {seen.data_workers}"
            return f"has {seen.data_workers} processes that load data on the cores that compute; {command} keeps cores"
        return ""

    def collect(self) -> None:
        """On rank 0: put into the record what every rank has seen, once all have come to their end."""
        if self._job.world.rank != 0:
            return
        for rank in range(self._job.world.size):
            key = _KEY.format(rank=rank)
            if self._job.meeting.store.check([key]):
                self._job.record.observed(rank, json.loads(self._job.meeting.store.get(key)))
