"""bfloat16 parameters with float32 master weights.

The model computes with bfloat16 parameters throughout, so nothing is converted on the way, and gradients are half as
large to send. The optimizer works on float32 copies, the master weights, since most updates are below bfloat16's
resolution (Micikevicius et al., "Mixed Precision Training", 2018, section 3.1). `state_dict` gives and
`load_state_dict` takes the master weights, so checkpoints are in full precision.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cpudist.errors import UserError

LOW = torch.bfloat16

_kept: weakref.WeakKeyDictionary[torch.nn.Module, MasterWeights] = weakref.WeakKeyDictionary()


def keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> MasterWeights:
    """Convert the float32 parameters of `model` to bfloat16, and let `optimizer` update float32 copies of them.

    The caller converts the inputs and outputs of the model; see `precision.compute_in`.

    Args:
        model: the model; its parameters may have any shapes.
        optimizer: its optimizer; None to hand one over later.

    Returns:
        The master weights.

    Raises:
        UserError: the model is wrapped in DDP already, which refers to the float32 parameters.
    """
    if isinstance(model, DistributedDataParallel):
        raise UserError("the model is wrapped in DDP already; call cpudist.optimize() before cpudist.wrap()")
    _kept[model] = weights = MasterWeights(model, optimizer)
    return weights


def of(module: torch.nn.Module) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
    """Return each bfloat16 parameter of `module`, as `keep` was given it, with its master weight; none elsewhere."""
    return list(_kept[module].masters.items()) if module in _kept else []


class MasterWeights:
    """The float32 copies of a model's parameters.

    The parameters stay in bfloat16: DDP holds on to autograd's accumulators of their gradients. After another change
    of type autograd makes new ones, and DDP would stop reducing gradients, without an error.

    Attributes:
        masters: each bfloat16 parameter with its float32 copy.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.masters: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
        for parameter in _convertible(model):
            self.masters[parameter] = torch.nn.Parameter(parameter.data, requires_grad=parameter.requires_grad)
            parameter.data = parameter.data.to(LOW)
        # torch sets an attribute of the hook, which a bound method does not allow.
        model.register_state_dict_post_hook(functools.partial(self._give))  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(self._take)  # type: ignore[no-untyped-call]
        if optimizer is not None:
            self.hand_over(optimizer)

    def hand_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Replace the parameters in the optimizer, and in its state, by the master weights."""
        for group in optimizer.param_groups:
            group["params"] = [self.masters.get(parameter, parameter) for parameter in group["params"]]
        for parameter, master in self.masters.items():
            if parameter in optimizer.state:
                optimizer.state[master] = optimizer.state.pop(parameter)
        updated = {id(master) for group in optimizer.param_groups for master in group["params"]}
        self._trained = [(low, master) for low, master in self.masters.items() if id(master) in updated]
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        zero_grad = optimizer.zero_grad

        def zero_all(set_to_none: bool = True) -> None:
            zero_grad(set_to_none)
            for low, _ in self._trained:
                if set_to_none:
                    low.grad = None
                elif low.grad is not None:
                    low.grad.zero_()

        optimizer.zero_grad = zero_all  # type: ignore[method-assign]

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, *positional = args  # the first is the optimizer itself
        if any(closure is not None for closure in (*positional, *kwargs.values())):
            raise UserError(
                "an optimizer that calls a closure computes gradients itself; give optimize(..., autocast=True)"
            )
        for low, master in self._trained:
            master.grad = None if low.grad is None else low.grad.to(torch.float32)

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for _, master in self._trained:
            master.grad = None
        lows, masters = zip(*self._trained, strict=True) if self._trained else ((), ())
        if lows:
            torch._foreach_copy_(list(lows), list(masters))

    def _give(self, model: torch.nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter in self.masters and prefix + name in state:
                state[prefix + name] = self.masters[parameter].detach()

    @torch.no_grad()
    def _take(self, model: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        # torch then loads the same values into the parameters, rounded.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            value, master = state.get(prefix + name), self.masters.get(parameter)
            if value is not None and master is not None and value.shape == master.shape:
                master.copy_(value)


def _convertible(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the float32 parameters, except in layers with running statistics, which need a single format."""
    with_statistics = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]
    kept = {id(p) for module in with_statistics for p in module.parameters(recurse=False)}
    return [p for p in model.parameters() if p.dtype is torch.float32 and id(p) not in kept]
