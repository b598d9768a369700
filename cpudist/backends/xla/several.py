"""While a job of several CPU processes, or CPU devices, runs, the runtime's own questions get the job's answers.

torch_xla (2.8) believes each CPU process to be alone: its world size is 1 and its collectives do nothing, so programs
written for it, and accelerate and Trainer, would train every rank alone and end in success. Over several devices of one
process its collectives abort. Here its public functions know the job's world, its collectives go through the host, and
those that cannot are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_xla
from torch_xla import runtime
from torch_xla.core import xla_model

from cpudist.backends.xla.buckets import know_models
from cpudist.backends.xla.host import fetch, reduce_flat
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.backends.xla.group import HostGroup
    from cpudist.changes import Changes
    from cpudist.world import World

_OPERATIONS = {
    xla_model.REDUCE_SUM: dist.ReduceOp.SUM,
    xla_model.REDUCE_MUL: dist.ReduceOp.PRODUCT,
    xla_model.REDUCE_MIN: dist.ReduceOp.MIN,
    xla_model.REDUCE_MAX: dist.ReduceOp.MAX,
}
_REFUSED = ("all_to_all", "collective_permute", "reduce_scatter", "reduce_scatter_bucketized", "send", "recv")


def make_one_world(world: World, changes: Changes) -> None:
    """Let torch_xla's functions know `world`, until `changes` are undone.

    Its collectives use the default process group, which must be a `HostGroup`.
    """
    answers = {
        "world_size": world.size,
        "global_device_count": world.size,
        "process_count": world.size,
        "global_ordinal": world.rank,
        "process_index": world.rank,
        "local_ordinal": world.local_rank,
        "local_process_count": world.local_size,
        "host_index": world.node_rank,
    }
    for name, answer in answers.items():
        changes.attribute(runtime, name, _constant(answer))
    changes.attribute(xla_model, "all_reduce", all_reduce)
    changes.attribute(xla_model, "all_gather", all_gather)
    changes.attribute(xla_model, "xla_rendezvous", rendezvous)
    for name in _REFUSED:
        changes.attribute(xla_model, name, _refusing(name))
    know_models(changes)
    changes.attribute(torch_xla, "compile", _compile_in_parts(torch_xla.compile, speaks=world.rank == 0))


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """`xm.all_reduce` over all ranks of the job: a tensor gives a new one, tensors are reduced in place.

    Raises:
        UserError: groups, or a reduction that only devices do.
    """
    if groups or reduce_type not in _OPERATIONS:
        what = f"the reduction {reduce_type!r}" if reduce_type not in _OPERATIONS else "groups"
        raise UserError(f"xm.all_reduce: several CPU processes reduce through the host, which does not do {what}")
    if dist.get_world_size() == 1:  # of several devices, that is: it uses one
        return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs
    tensors = [inputs.clone()] if isinstance(inputs, torch.Tensor) else list(inputs)
    if tensors:
        reduce_flat(_host_group(), tensors, _OPERATIONS[reduce_type], scale)
    return tensors[0] if isinstance(inputs, torch.Tensor) else inputs


def all_gather(
    value: torch.Tensor, dim: int = 0, groups: Any = None, output: torch.Tensor | None = None, pin_layout: bool = True
) -> torch.Tensor:
    """`xm.all_gather` over all ranks of the job: every rank's `value`, joined along `dim`.

    Raises:
        UserError: groups are given.
    """
    if groups:
        raise UserError("xm.all_gather: several CPU processes gather through the host, which does not do groups")
    (own,) = fetch([value])
    everyones = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    # As the runtime has it, numbers become the entries of a vector.
    joined = torch.stack(everyones) if own.dim() == 0 else torch.cat(everyones, dim)
    result = joined.to(value.device)
    return result if output is None else output.copy_(result)


def rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """`xm.rendezvous` of all ranks of the job: every rank's payload, in rank order."""
    if ordinals and len(ordinals) != dist.get_world_size():
        raise UserError(f"xm.rendezvous({tag!r}): only all ranks can meet, not {list(ordinals)}")
    torch_xla.sync()
    payloads: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(payloads, payload)
    return payloads


def _compile_in_parts(original: Callable[..., Any], speaks: bool) -> Callable[..., Any]:
    """`torch_xla.compile` without ``full_graph=True``: the gradients leave the device in the middle of a step."""

    def compile(f: Any = None, full_graph: bool = False, *args: Any, **kwargs: Any) -> Any:
        if full_graph and speaks and dist.get_world_size() > 1:
            say("xla: full_graph=True is left out: gradients go through the host, so a step is two graphs")
        return original(f, full_graph and dist.get_world_size() == 1, *args, **kwargs)

    return compile


def _host_group() -> Any:
    group: HostGroup = dist.group.WORLD  # type: ignore[assignment]
    return group.inner


def _constant(value: int) -> Callable[[], int]:
    return lambda: value


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UserError(
            f"xm.{name} is not for several CPU processes, which meet through the host; "
            "use torch.distributed's own, or one process with --mesh"
        )

    return refuse
