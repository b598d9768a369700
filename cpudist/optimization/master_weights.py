"""bfloat16 parameters with float32 master weights.

The model computes with bfloat16 parameters throughout, so nothing is converted on the way, and gradients are half as
large to send. The optimizer updates float32 copies, the master weights, since most updates are below bfloat16's
resolution (Micikevicius et al., "Mixed Precision Training", 2018, section 3.1). `state_dict` gives and
`load_state_dict` takes the master weights, so checkpoints are in full precision.

Outside of `step` the optimizer has the model's own parameters, for clipping, `zero_grad` and `add_param_group`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cpudist.errors import UserError

LOW = torch.bfloat16

_BROADCAST_BYTES = 250 * 2**20  # in one message, as DDP sends its parameters

_NAME = "_cpudist_master_weights"  # the model's attribute: copied with the model


def keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Convert the float32 parameters of `model` to bfloat16, and let `optimizer` update float32 copies of them.

    The caller converts the inputs and outputs of the model; see `precision.compute_in`. A model that has master weights
    keeps them, for another optimizer.

    Args:
        model: the model; its parameters may have any shapes.
        optimizer: its optimizer; None for a model that is not trained.

    Raises:
        UserError: the model is wrapped in DDP already, which refers to the float32 parameters, or the optimizer leaves
            the update to another one.
    """
    if isinstance(model, DistributedDataParallel):
        raise UserError("the model is wrapped in DDP already; call cpudist.optimize() before cpudist.wrap()")
    if isinstance(getattr(optimizer, "optim", None), torch.optim.Optimizer):  # torch.distributed.optim
        raise UserError(
            f"{type(optimizer).__name__} updates parameters by another optimizer; give optimize(..., autocast=True)"
        )
    if not kept(model):
        vars(model)[_NAME] = MasterWeights(model)
    if optimizer is not None:
        vars(model)[_NAME].hand_over(optimizer)


def kept(model: torch.nn.Module) -> bool:
    """Return whether `model` has master weights."""
    return _NAME in vars(model)


def share(model: torch.nn.Module) -> None:
    """Give rank 0's master weights to all ranks, as DDP gives them its parameters when it is made; all ranks call it.

    Otherwise the ranks of a model whose initial weights differ would round to different parameters later.

    Args:
        model: the model in DDP; any other is left alone.
    """
    if isinstance(model, DistributedDataParallel) and kept(model.module):
        vars(model.module)[_NAME].broadcast(model.process_group)


class MasterWeights:
    """The float32 copies of a model's parameters. A copy of the model has its own.

    The parameters stay in bfloat16: DDP holds on to autograd's accumulators of their gradients. After another change
    of type autograd makes new ones, and DDP would stop reducing gradients, without an error.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._masters = {parameter: _Master(parameter) for parameter in _convertible(model)}
        # torch sets an attribute of the hook, which a bound method does not allow.
        model.register_state_dict_post_hook(functools.partial(self._give))  # type: ignore[no-untyped-call]
        model.register_load_state_dict_pre_hook(self._take)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(self._before_forward)

    def hand_over(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer` update the master weights of the parameters that it has, now or later."""
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        load = optimizer.load_state_dict

        def load_in_float32(state_dict: dict[str, Any]) -> None:
            self._lend(optimizer)  # torch converts the state to the type of the parameters
            try:
                load(state_dict)
            finally:
                self._take_back(optimizer)

        optimizer.load_state_dict = load_in_float32  # type: ignore[method-assign]

    @torch.no_grad()
    def broadcast(self, group: dist.ProcessGroup) -> None:
        """Take the master weights of the group's first rank."""
        dist._broadcast_coalesced(group, [master.weight for master in self._masters.values()], _BROADCAST_BYTES, 0)
        for master in self._masters.values():
            master.round()

    @torch.no_grad()
    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, *positional = args  # the first is the optimizer itself
        if any(closure is not None for closure in (*positional, *kwargs.values())):
            raise UserError(
                "an optimizer that calls a closure computes gradients itself; give optimize(..., autocast=True)"
            )
        for master in self._updated_by(optimizer):
            master.renew()
            gradient = master.parameter.grad
            master.weight.grad = None if gradient is None else gradient.to(torch.float32)
        self._lend(optimizer)

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._take_back(optimizer)
        for master in self._updated_by(optimizer):
            master.weight.grad = None
            master.round()

    def _updated_by(self, optimizer: torch.optim.Optimizer) -> list[_Master]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [self._masters[parameter] for parameter in parameters if parameter in self._masters]

    def _lend(self, optimizer: torch.optim.Optimizer) -> None:
        _replace(optimizer, {parameter: master.weight for parameter, master in self._masters.items()})

    def _take_back(self, optimizer: torch.optim.Optimizer) -> None:
        _replace(optimizer, {master.weight: parameter for parameter, master in self._masters.items()})

    @torch.no_grad()
    def _before_forward(self, model: torch.nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():  # a change is then seen after the next step
            return
        for master in self._masters.values():
            if master.changed():
                master.renew()
                master.round()

    @torch.no_grad()
    def _give(self, model: torch.nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if parameter in self._masters and prefix + name in state:
                self._masters[parameter].renew()
                state[prefix + name] = self._masters[parameter].weight.detach()

    @torch.no_grad()
    def _take(self, model: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("assign_to_params_buffers"):
            raise UserError("load_state_dict(assign=True) would replace the bfloat16 parameters; leave assign out")
        # torch then loads the same values into the parameters, rounded.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            value, master = state.get(prefix + name), self._masters.get(parameter)
            if value is not None and master is not None and value.shape == parameter.shape:
                master.weight.copy_(value)
                master.round()


class _Master:
    """The master weight of one parameter.

    Attributes:
        parameter: the model's parameter, in bfloat16.
        weight: its master weight, in float32.
    """

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.weight = torch.nn.Parameter(parameter.data)
        parameter.data = parameter.data.to(LOW)
        self._rounded = parameter.data.clone()
        self._version = self.weight._version

    def changed(self) -> bool:
        """Return whether somebody has changed the master weight, which `state_dict` gives."""
        return self.weight._version != self._version

    def renew(self) -> None:
        """Take over what somebody has changed in the parameter: clamped, averaged or received it, for example.

        Versions of tensors would not tell: `.data` and collectives leave them as they are.
        """
        if not _same_bits(self.parameter, self._rounded):
            self.weight.copy_(torch.where(self.parameter == self._rounded, self.weight, self.parameter))
            self.round()

    def round(self) -> None:
        """Set the parameter to the master weight, rounded."""
        self.parameter.copy_(self.weight)
        self._rounded.copy_(self.parameter)
        self._version = self.weight._version


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare tensors of bfloat16, as integers: numbers would be converted to float32, one by one."""
    if one.dtype is not other.dtype:
        return False
    with contextlib.suppress(RuntimeError):  # where a stride cannot be divided by 4
        return torch.equal(one.view(torch.int64), other.view(torch.int64))
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def _replace(optimizer: torch.optim.Optimizer, by: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Replace parameters in an optimizer and in its state."""
    for group in optimizer.param_groups:
        group["params"][:] = [by.get(parameter, parameter) for parameter in group["params"]]
    for old, new in by.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def _convertible(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the float32 parameters, except in layers with running statistics, which need a single format."""
    with_statistics = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase)]
    kept = {id(p) for module in with_statistics for p in module.parameters(recurse=False)}
    return [p for p in model.parameters() if p.dtype is torch.float32 and id(p) not in kept]
