"""How gradients, or the parameters of hosts that train apart, cross the network (docs/slow-networks.md)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from cpudist.backends import embedding_rows
from cpudist.backends.compression import (
    AUTO,
    NONE,
    OUTER,
    check_backend,
    check_outer,
    check_scheme,
    check_sync_every,
    has,
)
from cpudist.backends.measured import choose_later
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    import torch

    from cpudist.backends import Backend
    from cpudist.job.record import RunRecord
    from cpudist.world import World


class Communication:
    """What the user has asked for, for all models of a job; a model may have its own.

    Attributes:
        world: this rank's place among the others.
        compression: the scheme in which gradients cross the network (`--compress`); None: the user has not said.
        sync_every: after how many steps hosts exchange (`--sync-every`); None: gradients are averaged in each step.
        outer: the step that they make then (`--outer`); None: the default.

    Args:
        backend: the job's backend.
        world: this rank's place among the others.
        record: the run record.
    """

    def __init__(self, backend: Backend, world: World, record: RunRecord) -> None:
        self._backend = backend
        self.world = world
        self._record = record
        self.compression: str | None = None
        self.sync_every: int | str | None = None
        self.outer: str | None = None

    def set_compression(self, scheme: str) -> None:
        """Let gradients of models without a scheme of their own cross the network in `scheme` from now on.

        Raises:
            UserError: the scheme is not known, or the backend does not have it.
        """
        check_backend(self._backend, check_scheme(scheme))
        self.compression = scheme

    def applicable(
        self, scheme: str | None, every: str | int | None, outer: str | None
    ) -> tuple[str | None, str | int | None, str | None]:
        """Return a model's own options without those that the backend does not have; rank 0 names them in one line.

        Args:
            scheme: in which its gradients cross the network.
            every: after how many steps hosts exchange.
            outer: the step that they make then.

        Raises:
            UserError: one of them is not known on any backend.
        """
        without = []
        if scheme is not None and not has(self._backend, check_scheme(scheme)):
            without.append(f"compress={scheme}")
            scheme = NONE
        if every is not None and check_sync_every(every) and not self._backend.steps_locally:
            without.append(f"sync_every={every}")
            every = outer = None
        if without and self.world.rank == 0:
            say(f"{self._backend.name} averages gradients without {' and '.join(without)}, which has no effect here")
        return scheme, every, outer

    def making_ddp(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return the context in which a model that averages in each step is put in DDP, before `compress`."""
        return embedding_rows.output_layers_last(model) if self._sends_rows() else nullcontext()

    def _sends_rows(self) -> bool:
        return self.world.node_count > 1 and self.world.device_type == "cpu"

    def compress(self, model: torch.nn.Module, scheme: str | None = None) -> None:
        """Let the gradients of a wrapped model cross the network in fewer bits. All ranks call it.

        Across hosts it also lets the rows of tied embeddings follow the other gradients.

        Args:
            model: the model, as `Backend.wrap` or accelerate returns it.
            scheme: how; None: the job's.

        Raises:
            UserError: as `set_compression`, or the model's gradients cannot be compressed, or ranks differ.
        """
        scheme = (self.compression or NONE) if scheme is None else check_scheme(scheme)
        check_backend(self._backend, scheme)
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
                say(f"--compress {scheme} changes nothing here: all ranks are on one host")

    def _choose_compression(self, model: torch.nn.Module) -> None:
        """Choose none or bf16 after the first steps of a model, where there is a choice."""

        def chosen(scheme: str, why: str) -> None:
            self._backend.compress(model, scheme)
            self._record.compression = scheme
            self._record.note_gradients_of(model)
            if why and self.world.rank == 0:
                say(f"--compress auto takes {scheme}: {why}")

        if "bf16" in self._backend.compressions:
            choose_later(model, chosen)
        else:
            chosen(NONE, "")

    def set_local_steps(self, every: str | int | None, outer: str | None = None) -> None:
        """Set how often hosts exchange, and the step `outer` that they make then, for models without their own.

        Raises:
            UserError: as `local_steps`.
        """
        self.sync_every, self.outer = self.local_steps(every, outer)

    def local_steps(self, every: str | int | None, outer: str | None) -> tuple[int | str | None, str]:
        """Return after how many steps hosts exchange, and the step that they make then; None stands for the job's.

        Raises:
            UserError: a value is not known, the backend makes no local steps, or there is an `outer` without `every`.
        """
        every = self.sync_every if every is None else check_sync_every(every)
        if every is not None and not self._backend.steps_locally:
            raise UserError(f"the backend {self._backend.name} averages gradients in each step; leave --sync-every out")
        if outer is not None and every is None:
            raise UserError("--outer is the step that hosts make after an exchange; give --sync-every, too")
        return every, check_outer(outer or self.outer or OUTER[0])

    def finish(self) -> None:
        """Warn at the end of the job if local steps were asked for and no model has made any."""
        unused = self.sync_every is not None and self.world.node_count > 1 and not self._record.outer
        if unused and self.world.rank == 0:
            say("warning: --sync-every had no effect: it is for models that Trainer or cpudist.wrap() has put in DDP")
