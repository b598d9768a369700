"""Local steps: hosts train apart, and exchange how far they have moved every so many steps (`--sync-every`).

The ranks of a host stay in step: DDP averages their gradients in a group of their own. After every K-th step an average
over all ranks begins (outer_step.py), which the following K/2 steps hide; then the outer step is made, and what this
rank has moved meanwhile is put on top of it: Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512) with one
fragment, and all of the local progress kept. Every step counts in exactly one average. `synchronize` does the same
without a delay, after which parameters are bitwise the same on all ranks (docs/slow-networks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpudist.backends import error_feedback
from cpudist.backends.compression import AUTO, NONE, check_scheme
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.job import current, require
from cpudist.optimization import master_weights
from cpudist.optimization.outer_step import OuterStep, flat, write
from cpudist.optimization.rounds import Rounds

if TYPE_CHECKING:
    from cpudist.job import Job

_FEW = 50  # outer steps: Nesterov momentum takes ten to build up, and as many to act

_attached: WeakKeyDictionary[torch.nn.Module, LocalSteps] = WeakKeyDictionary()
_watched: WeakSet[Job] = WeakSet()  # jobs whose optimizers are watched


def begin(every: str | int | None = None, outer: str | None = None, compress: str | None = None) -> LocalSteps | None:
    """Return the local steps of a model that is to be wrapped, in the group `LocalSteps.group`; every rank calls it.

    Args:
        every: after how many steps hosts exchange, or "auto"; None: as the job says.
        outer: "nesterov" or "none"; None: as the job says.
        compress: the scheme of the averages; None: as the job says. "auto" is bf16 where the backend has it.

    Returns:
        The local steps, to be attached to the wrapped model; None on one host, or if gradients are averaged instead.

    Raises:
        UserError: the backend or the scheme cannot, or ranks ask for different things.
    """
    job = require()
    every, outer = job.communication.local_steps(every, outer)
    if every is None or job.world.node_count == 1:
        if every is not None and job.world.rank == 0:
            say(f"--sync-every {every} changes nothing here: all ranks are on one host")
        return None
    scheme = check_scheme(compress or job.communication.compression or AUTO)
    if scheme == AUTO:
        scheme = "bf16" if "bf16" in job.backend.compressions else NONE
    return LocalSteps(job, every, outer, scheme)


def of(model: torch.nn.Module) -> LocalSteps | None:
    """Return the local steps of a model, as it was before it was wrapped; None where it makes none."""
    return _attached.get(model)


def kept(model: torch.nn.Module) -> LocalSteps | error_feedback.ErrorFeedback | None:
    """Return what a checkpoint must save of a model's communication between hosts; None: nothing.

    Args:
        model: the model as it was before it was wrapped.
    """
    return _attached.get(model) or error_feedback.of(model)


class LocalSteps:
    """The local steps of one model, and the outer steps between them.

    Attributes:
        group: the ranks of this host, among which DDP averages gradients.
        rounds: when hosts exchange.

    Args:
        job: the running job.
        every: after how many steps hosts exchange, or "auto".
        outer: "nesterov" or "none".
        scheme: how the averages cross the network: "none", "bf16" or "int8".

    Raises:
        UserError: the backend has no such scheme for averages, or ranks differ in an argument.
    """

    def __init__(self, job: Job, every: int | str, outer: str, scheme: str) -> None:
        self._is_main = job.world.rank == 0
        found: list[Any] = [None] * job.world.size
        dist.all_gather_object(found, (job.world.node_rank, (every, outer, scheme)))
        if any(settings != (every, outer, scheme) for _, settings in found):
            raise UserError("ranks differ in --sync-every, --outer or --compress; give all of them the same")
        self._record = job.record
        job.record.compression = scheme
        counted = {"outer_steps": 0, "outer_bytes": 0, **job.record.outer}  # of all models so far
        job.record.outer = {**counted, "sync_every": every, "outer": outer}
        ranks = [rank for rank, (node, _) in enumerate(found) if node == job.world.node_rank]
        self.group: Any = dist.new_group(ranks, use_local_synchronization=True, group_desc="ranks of one host")
        self._optimizer: torch.optim.Optimizer | None = None
        self._restore_rate: Callable[[], None] = lambda: None
        self._exact = job.backend.averaging(NONE)
        self._averaging = self._exact if scheme == NONE else job.backend.averaging(scheme)
        self.rounds = Rounds(
            None if every == AUTO else int(every),
            OuterStep(outer),
            self._averaging,
            self._updated,
            self._after_outer_step,
            self._note_choice,
        )
        self._outer_steps = 0  # of this training, with those before a restart
        self._settled = True  # whether the optimizer's state is the same on all ranks
        self._said_apart = self._said_few = False

    def attach(self, model: torch.nn.Module) -> None:
        """Begin local steps of a model in DDP; every rank calls it, and gets the parameters of rank 0.

        Raises:
            UserError: the model is in something else than DDP.
        """
        wrapped = getattr(model, "_orig_mod", model)  # of torch.compile
        if not isinstance(wrapped, DistributedDataParallel):
            raise UserError("--sync-every is for models in DDP; leave it out for this one")
        module = wrapped.module
        if require() not in _watched:
            _watch_optimizers(require())
        if (earlier := _attached.pop(module, None)) is not None:
            earlier.rounds.restart()
            earlier._detach()
        self._copies = [pair for part in module.modules() for pair in master_weights.of(part)]
        self._parameters = [*module.parameters(), *(master for _, master in self._copies)]
        saved = module.state_dict().keys()
        buffers = dict(module.named_buffers())
        self._buffers = [buffer for name, buffer in buffers.items() if name in saved and buffer.is_floating_point()]
        for tensor in [*self._parameters, *buffers.values()]:
            same = tensor.detach().contiguous()
            dist.broadcast(same, 0)
            if same.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(same)
        # The model may be compiled. `disable` imports torch._dynamo, which takes a second: not for every job, then.
        self._outside_graph = torch.compiler.disable(self.synchronize)  # type: ignore[no-untyped-call]
        self._handles: list[Any] = [
            module.register_forward_pre_hook(self._before_forward),
            module.register_load_state_dict_post_hook(self._after_loading),
            module.register_state_dict_pre_hook(self._before_saving),
        ]
        _attached[module] = self

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether `optimizer` updates this model."""
        first = next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)
        return any(first is parameter for parameter in self._parameters)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepare for a step of the optimizer.

        Raises:
            UserError: two optimizers update the model, or as `OuterStep.shorten`.
        """
        if self.rounds.apart and self._optimizer is not optimizer:
            raise UserError("with --sync-every one optimizer updates a model, and here are two; leave it out")
        self._optimizer = optimizer
        self.rounds.before_step()
        self._restore_rate()  # if the step before has raised an error
        self._restore_rate = self.rounds.outer.shorten(optimizer)

    @torch.no_grad()
    def after_step(self) -> None:
        """Count a step of the optimizer, with what is due after it."""
        self._restore_rate()
        self._restore_rate = lambda: None
        self._settled = False
        self.rounds.after_step()

    @torch.no_grad()
    def synchronize(self) -> None:
        """Give all ranks the same parameters and buffers; every rank calls it after the same step."""
        if self.rounds.apart:
            self.rounds.synchronize()
            self._average_all(self._buffers)

    def settle(self) -> None:
        """Synchronize, and average all other state: a checkpoint of any rank is then that of all ranks."""
        self.synchronize()
        if self._optimizer is None or self._settled:
            return
        states = list(self._optimizer.state.values())
        for name in sorted({name for state in states for name in state}):
            values = [state[name] for state in states if isinstance(state.get(name), torch.Tensor)]
            self._average_all([value for value in values if value.is_floating_point() and value.dim() > 0])
        self._averaging.settle()
        self._settled = True

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides the model and its optimizer, after `settle`."""
        return {
            "every": self.rounds.every,
            "momentum": self.rounds.outer.momentum,
            "residual": self._averaging.residual,
            "outer_steps": self._outer_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; all ranks have loaded the model and its optimizer."""
        self.rounds.restart()
        self.rounds.every = self.rounds.every or state.get("every")
        self.rounds.outer.momentum = None if self.rounds.outer.plain else state.get("momentum")
        self._averaging.residual = state.get("residual")
        self._outer_steps = state.get("outer_steps", 0)

    def expect(self, steps: int) -> None:
        """Warn if a training of so many steps is too short for the momentum of the outer step."""
        self._warn_if_few(steps // (self.rounds.every or 1))

    def finish(self) -> None:
        """Wait for what is under way; warn if the training was too short."""
        self.rounds.restart()
        self._warn_if_few(self._outer_steps)

    def _warn_if_few(self, exchanges: int) -> None:
        if self._is_main and not self._said_few and 0 < exchanges < _FEW and not self.rounds.outer.plain:
            self._said_few = True
            say(
                f"warning: hosts exchange {exchanges} times in this training, too rarely for the momentum of --outer "
                f"nesterov, which needs {_FEW}; take --outer none"
            )

    @torch.no_grad()
    def _average_all(self, tensors: list[torch.Tensor]) -> None:
        """Average tensors over all ranks, exactly."""
        if tensors:
            vector = flat(tensors)
            self._exact.begin(vector)()
            write(vector, tensors)

    def _after_outer_step(self, sent: int) -> None:
        for low, master in self._copies:
            low.copy_(master)
        self._outer_steps += 1
        record = self._record.outer
        record["outer_steps"] += 1
        record["outer_bytes"] += sent

    def _note_choice(self, every: int, step: float, exchange: float) -> None:
        self._record.outer["sync_every"] = every
        if self._is_main:
            say(
                f"--sync-every auto: a step takes {step:.3g} s, an exchange {exchange:.3g} s; "
                f"from now on hosts exchange after every {every} steps"
            )

    def _updated(self) -> list[torch.Tensor]:
        assert self._optimizer is not None
        everything = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        return [parameter.detach() for parameter in everything if parameter.requires_grad]

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        if not module.training and _attached.get(module) is self:  # copies of the module have the hook, too
            self._outside_graph()

    def _after_loading(self, module: torch.nn.Module, keys: Any) -> None:
        self.rounds.restart()

    def _before_saving(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        if self.rounds.apart and self._is_main and not self._said_apart and _attached.get(module) is self:
            self._said_apart = True
            say(
                "warning: this state_dict is that of one host, and others have other parameters; save with "
                "cpudist.save or cpudist.Checkpoints on all ranks"
            )

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()


def check_without_scaler() -> None:
    """Check that no model makes local steps.

    Raises:
        UserError: one does; a float16 scaler may skip a step on one host alone.
    """
    if _attached and current() is not None:
        raise UserError(
            "--sync-every does not go with float16, whose scaler skips steps; use bfloat16, or leave it out"
        )


def _watch_optimizers(job: Job) -> None:
    """Call the local steps of a model before and after each step of its optimizer until the job ends."""

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for local in list(_attached.values()):
            if local.owns(optimizer):
                local.before_step(optimizer)

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for local in list(_attached.values()):
            if local.owns(optimizer):
                local.after_step()

    def stop() -> None:
        for handle in handles:
            handle.remove()
        for local in _attached.values():
            local._detach()
        _attached.clear()
        _watched.discard(job)

    def finish() -> None:
        for local in _attached.values():
            local.finish()

    _watched.add(job)
    job.finish_before_end(finish)
    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    job.changes.then(stop)
