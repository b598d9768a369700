"""Warn about ranks that train without gradient synchronisation: a script without DDP trains N models."""

import sys

from cpudist.console import say
from cpudist.observability.observers import ObservedJob, Observer

_PAGE = "cpudist docs own-script"
_LIGHTNING = {"lightning", "pytorch_lightning"}  # With devices=1 each rank trains a model of its own.


class UnsynchronizedRanks(Observer):
    """Warns at the end of a job of several ranks if it has made optimizer steps but called no collective.

    Only for ranks on CPUs: on other devices gradients may bypass the backend.
    """

    def __init__(self, job: ObservedJob) -> None:
        self._job = job
        self._at_start = self._communicated()

    def end(self) -> None:
        """Warn if the ranks have made steps but called no collective."""
        world, steps = self._job.world, self._job.counter.steps
        if world.rank > 0 or world.size == 1 or world.device_type != "cpu" or self._at_start[0] is None:
            return
        if steps and self._communicated() == self._at_start:
            remedy = f"give Lightning devices={world.local_size}" if _LIGHTNING & sys.modules.keys() else _PAGE
            say(f"warning: {world.size} ranks trained without gradient synchronisation ({remedy})")

    def _communicated(self) -> tuple[object, float | None]:
        """Return a value that changes with a collective, even after the script has destroyed its groups."""
        return self._job.backend.progress(), self._job.backend.communication_seconds()
