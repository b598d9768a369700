"""What a job changes in torch_xla, and in accelerate's part for it.

torch_xla (2.8) regards each CPU process as alone: its world size is 1 and its collectives do nothing, so programs
written for it, and accelerate and Trainer, would train every rank alone and end in success. Over several devices of one
process its collectives abort. While a job runs, its public functions answer with the job's world, its collectives go
through the host, and what cannot work raises an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_multiprocessing as multiprocessing
from torch_xla import runtime
from torch_xla.core import xla_model

from cpudist.backends.xla.transfers import fetch, reduce_flat, track_ddp_models
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

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
    """Let torch_xla's functions answer for `world`, until `changes` are undone.

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
    track_ddp_models(changes)
    changes.attribute(torch_xla, "compile", _compile_in_parts(torch_xla.compile, is_main_process=world.rank == 0))


def run_in_place(world: World, changes: Changes, mesh: bool) -> None:
    """Let `torch_xla.launch` and `xmp.spawn` call their function in this process: the ranks have been started already.

    Args:
        world: this rank's place.
        changes: what the job takes back.
        mesh: whether --mesh has made one program of the job; both functions then raise `UserError`, as the runtime
            does.
    """

    def launch(
        fn: Callable[..., Any], args: Any = (), start_method: str = "spawn", debug_single_process: bool = False
    ) -> None:
        _check_devices_are_used(mesh, alone=debug_single_process)
        fn(world.rank, *args)

    def spawn(
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        _check_devices_are_used(mesh, alone=nprocs == 1)
        fn(world.rank, *args)

    changes.attribute(torch_xla, "launch", launch)
    changes.attribute(multiprocessing, "spawn", spawn)


def replace_use_spmd(world: World, changes: Changes, mesh: bool) -> None:
    """Let `xr.use_spmd` do nothing under --mesh, which has called it, and raise `UserError` beside other ranks."""
    original = runtime.use_spmd

    def use_spmd(auto: bool = False) -> None:
        if mesh and auto:
            raise UserError("use_spmd(auto=True) lets the compiler choose how tensors lie; leave --mesh out")
        if not mesh and world.size > 1:
            raise UserError(
                "use_spmd() makes one program over the devices of one runtime and works beside no other process group, "
                f"and {world.launcher} has started {world.size} ranks, each with a device of its own; start one process"
            )
        if not mesh:
            original(auto)

    changes.attribute(runtime, "use_spmd", use_spmd)


def patch_accelerate_loader(changes: Changes, data_loader: ModuleType) -> None:
    """Change `accelerate.data_loader` (1.15), for several ranks: move a batch to the device when it is asked for.

    accelerate's loader reads a batch ahead, in a thread. When the last batch is evaluated, it is no longer known to be
    the last one, and `gather_for_metrics` keeps the samples that were repeated to give every rank equally many.

    Raises:
        UserError: the installed accelerate has no such loader.
    """
    cls = getattr(data_loader, "MpDeviceLoaderWrapper", None)
    if cls is None or list(inspect.signature(cls.__init__).parameters) != ["self", "dataloader", "device"]:
        raise UserError("the backend xla does not know the installed accelerate; pip install 'accelerate>=1.15,<2'")

    def iterate(self: Any) -> Iterator[Any]:
        if self._rng_types is not None:
            data_loader.synchronize_rng_states(self._rng_types, self._loader.synchronized_generator)
        for batch in self._loader:
            yield data_loader.send_to_device(batch, self.device)

    changes.attribute(cls, "__iter__", iterate)


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Replace `xm.all_reduce`: reduce over all ranks of the job.

    Args:
        reduce_type: one of torch_xla's names of reductions.
        inputs: a tensor, which is left as it is, or several, which are reduced in place.
        scale: what the result is multiplied by.
        groups: must be empty.
        pin_layout: ignored.

    Returns:
        A new tensor, or `inputs`.

    Raises:
        UserError: groups are given, or the host does not know the reduction.
    """
    if groups or reduce_type not in _OPERATIONS:
        what = f"the reduction {reduce_type!r}" if reduce_type not in _OPERATIONS else "groups"
        raise UserError(f"xm.all_reduce: several CPU processes reduce through the host, which does not do {what}")
    if dist.get_world_size() == 1:  # a process with several devices, of which it uses one
        return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs
    tensors = [inputs.clone()] if isinstance(inputs, torch.Tensor) else list(inputs)
    if tensors:
        reduce_flat(_host_group(), tensors, _OPERATIONS[reduce_type], scale)
    return tensors[0] if isinstance(inputs, torch.Tensor) else inputs


def all_gather(
    value: torch.Tensor, dim: int = 0, groups: Any = None, output: torch.Tensor | None = None, pin_layout: bool = True
) -> torch.Tensor:
    """Replace `xm.all_gather`: return every rank's `value`, concatenated along `dim`, on the device.

    A `value` without dimensions becomes one entry of a vector.

    Raises:
        UserError: groups are given.
    """
    if groups:
        raise UserError("xm.all_gather: several CPU processes gather through the host, which does not do groups")
    (own,) = fetch([value])
    everyones = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    joined = torch.stack(everyones) if own.dim() == 0 else torch.cat(everyones, dim)
    result = joined.to(value.device)
    return result if output is None else output.copy_(result)


def rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Replace `xm.rendezvous`: return every rank's payload, in rank order.

    Raises:
        UserError: `ordinals` names only some of the ranks.
    """
    if ordinals and len(ordinals) != dist.get_world_size():
        raise UserError(f"xm.rendezvous({tag!r}): only all ranks can meet, not {list(ordinals)}")
    torch_xla.sync(reset_scope=False)
    payloads: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(payloads, payload)
    return payloads


def _check_devices_are_used(mesh: bool, alone: bool) -> None:
    """Raise `UserError` where a function that is called once would not use every device.

    Args:
        mesh: whether --mesh has made one program of the job.
        alone: whether the script asks for one process.
    """
    if mesh:
        raise UserError(
            "torch_xla.launch and xmp.spawn start a rank for each device, and --mesh makes one program of all; "
            "call the function itself, or leave --mesh out"
        )
    count = runtime.addressable_runtime_device_count()
    if count > 1 and not alone:
        raise UserError(
            f"torch_xla.launch and xmp.spawn are to use each device, and this one process has {count}: start {count} "
            f"ranks (mpirun -n {count}, torchrun --nproc-per-node={count}) with one device each, or write the script "
            "for --mesh"
        )


def _compile_in_parts(original: Callable[..., Any], is_main_process: bool) -> Callable[..., Any]:
    """Replace `torch_xla.compile`: ``full_graph=True`` has no effect: gradients leave the device within a step."""

    def compile(f: Any = None, full_graph: bool = False, *args: Any, **kwargs: Any) -> Any:
        if full_graph and is_main_process and dist.get_world_size() > 1:
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
