"""Notice that ranks have trained without ever communicating: a script that wraps no model trains N models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from cpudist.console import say

if TYPE_CHECKING:
    from cpudist.backends import Backend
    from cpudist.changes import Changes
    from cpudist.world import World


class TrainedAlone:
    """Sees this rank's first optimizer step, and whether it has communicated.

    Args:
        backend: the backend, started.
        world: this rank's place among the others. On other devices than the CPU, gradients may cross by other ways.
        changes: where to note the change of torch.
    """

    def __init__(self, backend: Backend, world: World, changes: Changes) -> None:
        self._backend, self._world = backend, world
        self._trained = False
        self._at_start = self._communicated()
        if world.size > 1 and world.rank == 0 and world.device_type == "cpu" and self._at_start[0] is not None:
            changes.then(register_optimizer_step_post_hook(self._step).remove)

    def tell(self) -> None:
        """Tell the user at the end of the job, on rank 0, if it has made optimizer steps and no collective."""
        if self._trained and self._communicated() == self._at_start:
            say(f"warning: {self._world.size} ranks trained alone: they never communicated (docs/own-script.md)")

    def _step(self, *_: Any) -> None:
        self._trained = True  # torch iterates over the hooks now, so this one stays

    def _communicated(self) -> tuple[object, float | None]:
        """Return a value that changes with a collective, also once the script has destroyed its groups."""
        return self._backend.progress(), self._backend.communication_seconds()
