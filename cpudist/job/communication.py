"""Compression of gradients between hosts (docs/slow-networks.md)."""

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
    """Applies the compression that the user has chosen for the job or for one of its models.

    Attributes:
        world: this rank's place among the others.
        compression: the default scheme of the job's models (`--compress`); None if the user has set none.
    """

    def __init__(self, backend: Backend, world: World, record: RunRecord) -> None:
        self._backend, self._record = backend, record
        self.world = world
        self.compression: str | None = None

    def set_compression(self, scheme: str, asked: str) -> None:
        """Set the default scheme of the job's models.

        Args:
            scheme: the scheme.
            asked: the option as the user wrote it, for messages.

        Raises:
            UserError: the scheme does not exist, or the backend does not have it.
        """
        check_backend(self._backend, check_scheme(scheme, asked), asked)
        self.compression = scheme

    def applicable(self, scheme: str | None) -> str | None:
        """Return a model's own scheme, or "none" if the backend does not have it; rank 0 then prints one line.

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
            scheme: a result of `applicable`; None: the job's default.

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
        """Choose "none" or "bf16" after the first steps of a model; "none" at once if the backend has no bf16."""

        def chosen(scheme: str, why: str) -> None:
            self._backend.compress(model, scheme)
            self._record.compression = scheme
            if why and self.world.rank == 0:
                say(f"compression by auto takes {scheme}: {why}")

        if "bf16" in self._backend.compressions:
            choose_later(model, chosen)
        else:
            chosen(NONE, "")
