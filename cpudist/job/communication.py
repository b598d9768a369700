"""How gradients cross the network (docs/slow-networks.md), and a notice where ranks have never communicated."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from cpudist.backends import embedding_rows
from cpudist.backends.compression import AUTO, NONE, check_backend, check_scheme, has
from cpudist.backends.measured import choose_later
from cpudist.console import say
from cpudist.observability.gradient_times import GradientTimes

if TYPE_CHECKING:
    import torch

    from cpudist.backends import Backend
    from cpudist.changes import Changes
    from cpudist.observability.pace import PaceMeter
    from cpudist.observability.record import RunRecord
    from cpudist.world import World


class Communication:
    """The user's choice for all models of a job; a model may have its own.

    Attributes:
        world: this rank's place among the others.
        compression: the scheme in which gradients cross the network (`--compress`); None: the user has not said.

    Args:
        scheme: that of the job's options.
    """

    def __init__(self, backend: Backend, world: World, changes: Changes, record: RunRecord, scheme: str | None) -> None:
        self._backend = backend
        self.world = world
        self._record = record
        self._times = GradientTimes(backend, changes, record)
        self.compression = scheme

    def set_compression(self, scheme: str, asked: str) -> None:
        """Let gradients of models without a scheme of their own cross the network in `scheme` from now on.

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

    def making_ddp(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return the context in which a model is put in DDP, before `compress`."""
        return embedding_rows.output_layers_last(model) if self._sends_rows() else nullcontext()

    def _sends_rows(self) -> bool:
        return self.world.node_count > 1 and self.world.device_type == "cpu"

    def compress(self, model: torch.nn.Module, scheme: str | None = None) -> None:
        """Send the gradients of a wrapped model in fewer bits. All ranks call it.

        Across hosts it also lets the rows of tied embeddings follow the other gradients.

        Args:
            model: the model, as `Backend.wrap` or accelerate returns it.
            scheme: a result of `applicable`; None: the job's.

        Raises:
            UserError: the model's gradients cannot be compressed, or ranks differ.
        """
        self._times.tied |= embedding_rows.tied(model).keys()
        scheme = scheme or self.compression or NONE
        self._record.compression = scheme
        if self.world.node_count > 1:
            self._backend.compress(model, scheme)
            if self._sends_rows():
                self._record.embedding_rows = embedding_rows.send_apart(model)
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


class TrainedAlone:
    """Notice that ranks have trained without ever communicating: a script that wraps no model trains N models.

    Args:
        world: this rank's place among the others. On other devices than the CPU, gradients may cross by other ways.
    """

    def __init__(self, backend: Backend, world: World, pace: PaceMeter) -> None:
        self._backend, self._world, self._pace = backend, world, pace
        self._at_start = self._communicated()

    def tell(self) -> None:
        """Tell the user at the end of the job, on rank 0, if it has made optimizer steps and no collective."""
        ranks = self._world.size
        if ranks == 1 or self._world.rank > 0 or self._world.device_type != "cpu" or self._at_start[0] is None:
            return
        if self._pace.steps and self._communicated() == self._at_start:
            say(f"warning: {ranks} ranks trained alone: they never communicated (cpudist docs own-script)")

    def _communicated(self) -> tuple[object, float | None]:
        """Return a value that changes with a collective, also once the script has destroyed its groups."""
        return self._backend.progress(), self._backend.communication_seconds()
