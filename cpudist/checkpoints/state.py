"""The content of a checkpoint, as a tree of named tensors and objects for `torch.distributed.checkpoint` (DCP).

    model      NAME: tensor            without DDP's "module."
    optimizer  state, NAME, KEY: tensor or object;  param_groups
    random     RANK: the states of random generators
    values     NAME: a plain value
    NAME       any other argument; modules are stored like model, others are pickled whole

DCP flattens dicts and converts their keys to text. So values other than tensors are in tuples, which DCP pickles whole.
"""

import copy
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from cpudist.console import names_of
from cpudist.errors import UserError, expect
from cpudist.job import current

RESERVED = ("random", "values")


def collect(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    more: Mapping[str, Any],
    rank: int,
    *,
    copied: bool = False,
) -> dict[str, Any]:
    """Return the tree of a checkpoint, or a copy of it (`copied`) for a background write; all ranks must call this."""
    check_arguments(model, optimizer, more)
    if model is None and not more:
        raise UserError("nothing was given to save; give model=, optimizer=, or values by their names")
    job = current()
    if job is not None:
        job.backend.devices.synchronize()
    tree: dict[str, Any] = {"random": {str(rank): (_random_states(),)}, "values": {}}
    if model is not None:
        tree["model"] = of_module(model)
        if optimizer is not None:
            tree["optimizer"] = _of_optimizer(model, optimizer)
    for name, value in more.items():
        if isinstance(value, torch.nn.Module):
            tree[name] = of_module(value)
        elif is_stateful(value):
            tree[name] = (value.state_dict(),)
        else:
            tree["values"][name] = (value,)
    return copy.deepcopy(tree) if copied else tree


def check_arguments(model: Any, optimizer: Any, more: Mapping[str, Any]) -> None:
    for name, value, kind in ("model", model, torch.nn.Module), ("optimizer", optimizer, torch.optim.Optimizer):
        if value is not None:
            expect(f"{name}=", value, kind)
    if optimizer is not None and model is None:
        raise UserError("optimizer= is saved and loaded under the names of its model's parameters; give model= too")
    for name in RESERVED:
        if name in more:
            raise UserError(f"{name}= is a name that checkpoints use themselves; give it another one")


def is_stateful(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def plain_values(more: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if not is_stateful(value)}


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the user's own model, without DDP's and torch.compile's wrappers."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(original := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = original
        else:
            return model


def load_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load an optimizer's part of a tree; its parameters may now have another order or other groups."""
    options = {name: group for group in saved["param_groups"][0] for name in group["params"]}
    packed = optimizer.state_dict()
    state, groups = {}, []
    for group, numbers, names in zip(
        optimizer.param_groups, packed["param_groups"], _names_in(model, optimizer), strict=True
    ):
        if missing := [name for name in names if name not in options]:
            remedy = "give one of the same parameters"
            raise UserError(f"the checkpoint's optimizer does not have {names_of(missing, 'name')}; {remedy}")
        known = options[names[0]] if names else numbers
        groups.append({**known, "params": numbers["params"]})
        for parameter, number, name in zip(group["params"], numbers["params"], names, strict=True):
            of_parameter = saved.get("state", {}).get(name)
            if of_parameter is not None:
                state[number] = {key: _laid_out(value, parameter) for key, value in of_parameter.items()}
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def load_random(states: Mapping[str, Any]) -> None:
    """Set the random generators of this rank."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
    job = current()
    if job is not None and states.get("device") is not None:
        job.backend.devices.set_random_state(states["device"])


def of_module(model: torch.nn.Module) -> dict[str, Any]:
    """Return the tree of a module: its tensors and the rest of its state, by name."""
    return _with_tuples(unwrapped(model).state_dict())


def _of_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    packed = optimizer.state_dict()
    groups, state = [], {}
    for group, names in zip(packed["param_groups"], _names_in(model, optimizer), strict=True):
        groups.append({**group, "params": names})
        for number, name in zip(group["params"], names, strict=True):
            if number in packed["state"]:
                state[name] = _with_tuples(packed["state"][number])
    return {"state": state, "param_groups": (groups,)}


def _names_in(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[list[str]]:
    """Yield the names of the parameters in each of the optimizer's groups."""
    names = {id(parameter): name for name, parameter in unwrapped(model).named_parameters()}
    for group in optimizer.param_groups:
        strange = [parameter for parameter in group["params"] if id(parameter) not in names]
        if strange:
            raise UserError(f"the optimizer updates {len(strange)} parameters of another model; give that model's")
        yield [names[id(parameter)] for parameter in group["params"]]


def _laid_out(value: Any, parameter: torch.Tensor) -> Any:
    """Return a value of an optimizer's state with the layout of its parameter.

    Fused optimizers ignore strides, so the value needs the parameter's memory order. The state of a DTensor is divided
    over the ranks like the DTensor.
    """
    if isinstance(value, tuple):
        return value[0]
    if value.shape != parameter.shape:
        return value
    if isinstance(parameter, DTensor):
        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    if value.stride() == parameter.stride():
        return value
    return torch.empty_strided(value.shape, parameter.stride(), dtype=value.dtype).copy_(value)


def _random_states() -> dict[str, Any]:
    states = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    job = current()
    if job is not None:
        states["device"] = job.backend.devices.random_state()
    return states


def _with_tuples(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with tensors on the CPU, DTensors unchanged, and all other values in tuples."""
    tree: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, DTensor):
            tree[name] = value.detach()
        else:
            tree[name] = value.detach().cpu() if isinstance(value, torch.Tensor) else (value,)
    return tree
