"""The one owner of how gradients cross the network (docs/slow-networks.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cpudist.backends.compression import AUTO, NONE, check_backend, check_scheme, has
from cpudist.backends.measured import choose_later
from cpudist.console import say

if TYPE_CHECKING:
    import torch

    from cpudist.backends import Backend
    from cpudist.observability.record import RunRecord
    from cpudist.world import World


class Communication:
    """The user's choice for all models of a job; a model may have its own.

    Attributes:
        world: this rank's place among the others.
        compression: the scheme of all models without one of their own (`--compress`); None: the user has not said.
    """

    def __init__(self, backend: Backend, world: World, record: RunRecord) -> None:
        self._backend, self._record = backend, record
        self.world = world
        self.compression: str | None = None

    def set_compression(self, scheme: str, asked: str) -> None:
        """Set the scheme of all models without one of their own.

        Args:
            scheme: the scheme.
            asked: the option as the user wrote it, for messages.

        Raises:
            UserError: the scheme does not exist, or the backend does not have it.
        """
        check_backend(self._backend, check_scheme(scheme, asked), asked)
        self.compression = scheme

    def applicable(self, scheme: str | None) -> str | None:
        """Return a model's own scheme, or "none" where the backend does not have it; rank 0 says so in one line.

        Raises:
            UserError: no backend has the scheme.
        """
        if scheme is None or has(self._backend, check_scheme(scheme, f"compress={scheme!r}")):
            return scheme
        if self.world.rank == 0:
            say(f"{self._backend.name} averages gradients without compress={scheme}, which has no effect here")
        return NONE

    def compress(self, model: torch.nn.Module, scheme: str | None = None) -> None:
        """Send the gradients of a wrapped model in fewer bits. All ranks call it.

        Args:
            model: the model, as `Backend.wrap` or accelerate returns it.
            scheme: a result of `applicable`; None: the job's.

        Raises:
            UserError: the model's gradients cannot be compressed, or ranks differ.
        """
        scheme = scheme or self.compression or NONE
        self._record.compression = scheme
        if self.world.node_count > 1:
            self._backend.compress(model, scheme)
            if scheme == AUTO:
                self._choose_compression(model)
        elif scheme != NONE:
            self._record.compression = f"{NONE}: all ranks are on one host"
            if self.world.rank == 0 and scheme != AUTO:
                say(f"compression by {scheme} changes nothing here: all ranks are on one host")

    def _choose_compression(self, model: torch.nn.Module) -> None:
        """Choose none or bf16 after the first steps of a model, where there is a choice."""

        def chosen(scheme: str, why: str) -> None:
            self._backend.compress(model, scheme)
            self._record.compression = scheme
            self._record.note_gradients_of(model)
            if why and self.world.rank == 0:
                say(f"compression by auto takes {scheme}: {why}")

        if "bf16" in self._backend.compressions:
            choose_later(model, chosen)
        else:
            chosen(NONE, "")
