"""Gives the optimizers of a sharded model plain tensors for a step: this rank's rows.

Each operation on a DTensor costs more than updating a small parameter, and optimizers run a dozen for every parameter.
Optimizers that update each element separately need the rows alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import optim
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from cpudist.backends.shards import Shard
from cpudist.errors import UserError

_BY_ELEMENT = (
    *(optim.Adadelta, optim.Adagrad, optim.Adam, optim.Adamax, optim.AdamW, optim.ASGD, optim.NAdam, optim.RAdam),
    *(optim.RMSprop, optim.Rprop, optim.SGD),
)


class ShardedOptimizers:
    """Hooks on every optimizer that updates some of one model's `shards`, made before or after this."""

    def __init__(self, shards: Sequence[Shard], group: Any) -> None:
        self._shards = shards
        self._group = group
        self._known: weakref.WeakSet[optim.Optimizer] = weakref.WeakSet()
        this = weakref.ref(self)  # torch keeps the hooks, and must not keep the model

        def before(optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (found := this()) is not None:
                found._before_step(optimizer, (*args[1:], *kwargs.values()))  # the first is the optimizer itself

        def after(optimizer: optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if (found := this()) is not None:
                found._after_step(optimizer)

        for handle in (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)):
            weakref.finalize(self, handle.remove)

    @torch.no_grad()
    def _before_step(self, optimizer: optim.Optimizer, arguments: Iterable[Any]) -> None:
        """Replace the shards by their rows; also the module's parameters, if the optimizer was made before sharding.

        Raises:
            UserError: this optimizer cannot update rows, or gradients have not been reduced.
        """
        _replace(optimizer, {id(shard.whole): shard.own for shard in self._shards})
        updates = self._updated_by(optimizer)
        if not updates:
            return
        self._get_to_know(optimizer)
        if any(argument is not None for argument in arguments):
            raise UserError("with shard_optimizer=True optimizer.step() takes no closure; compute gradients before it")
        if any(shard.waits for shard in updates):
            raise UserError(
                "optimizer.step() after no_sync() alone; let another backward pass outside reduce gradients"
            )
        for shard in updates:
            shard.local.grad = None if shard.own.grad is None else shard.own.grad.to_local()  # type: ignore[attr-defined]
        _replace(optimizer, {id(shard.own): shard.local for shard in updates})

    def _after_step(self, optimizer: optim.Optimizer) -> None:
        """Put the shards back, and gather the updated rows on all ranks."""
        _replace(optimizer, {id(shard.local): shard.own for shard in self._shards})
        updated = [shard for shard in self._updated_by(optimizer) if shard.own.grad is not None]
        for shard in updated:
            shard.local.grad = None
        if updated:
            memories, chunks = [shard.memory for shard in updated], [shard.chunk for shard in updated]
            self._group.allgather_into_tensor_coalesced(memories, chunks).wait()

    def _updated_by(self, optimizer: optim.Optimizer) -> list[Shard]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [shard for shard in self._shards if id(shard.own) in held]

    def _get_to_know(self, optimizer: optim.Optimizer) -> None:
        if optimizer in self._known:
            return
        if type(optimizer) not in _BY_ELEMENT:
            names = ", ".join(kind.__name__ for kind in _BY_ELEMENT)
            raise UserError(
                f"shard_optimizer=True is for optimizers of torch that update each element by itself ({names}); "
                f"leave it out for {type(optimizer).__name__}"
            )
        self._known.add(optimizer)
        self._share_out(optimizer)
        optimizer.register_load_state_dict_post_hook(self._share_out)
        optimizer.register_state_dict_post_hook(self._gather)

    @torch.no_grad()
    def _share_out(self, optimizer: optim.Optimizer) -> None:
        """Reduce a whole state, loaded or made before the first step, to this rank's rows."""
        for shard in self._shards:
            _convert(optimizer.state.get(shard.own, {}), shard.whole.shape, shard.rows_of)

    def _gather(self, optimizer: optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Return the result of `optimizer.state_dict()` with the rows of all ranks; all ranks call it."""
        of_parameter = {id(shard.own): shard for shard in self._shards}
        whole = dict(state["state"])
        for group, packed in zip(optimizer.param_groups, state["param_groups"], strict=True):
            for parameter, number in zip(group["params"], packed["params"], strict=True):
                shard = of_parameter.get(id(parameter))
                if shard is not None and number in whole:
                    whole[number] = dict(whole[number])
                    _convert(whole[number], shard.local.shape, shard.whole_of)
        return {**state, "state": whole}


def _replace(optimizer: optim.Optimizer, others: dict[int, torch.nn.Parameter]) -> None:
    """Replace the parameters with these ids, and the keys of their state, in `optimizer`."""
    for group in optimizer.param_groups:
        for place, parameter in enumerate(group["params"]):
            if (other := others.get(id(parameter))) is not None:
                group["params"][place] = other
                if parameter in optimizer.state:
                    optimizer.state[other] = optimizer.state.pop(parameter)


def _convert(state: dict[str, Any], shape: torch.Size, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Convert the tensors of one parameter's state that have its `shape`: they belong to its elements."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == shape:
            state[name] = convert(value)
