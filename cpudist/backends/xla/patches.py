"""A job's patches of torch_xla, and of accelerate's code for it.

torch_xla (2.8) treats each CPU process as a world of size 1, and its collectives do nothing. Programs for torch_xla,
accelerate and Trainer would train without gradient synchronisation, without an error. In a process with several devices
the collectives abort. During a job torch_xla reports the job's rank and world size. `all_reduce`, `all_gather` and
`xla_rendezvous` go through the host; the other functions of xm and `core.functions` call these three. All other calls
of the runtime's own collectives raise an error. docs/xla.md lists every function.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch_xla
from torch.distributed import distributed_c10d
from torch_xla import runtime
from torch_xla.core import xla_model

from cpudist.backends.xla import pjrt
from cpudist.backends.xla.transfers import ddp_models, fetch, reduce_flat
from cpudist.errors import UserError
from cpudist.patching.patch import Patch, adjusted, apply
from cpudist.patching.undo import Changes
from cpudist.world import World

if TYPE_CHECKING:
    from cpudist.backends.xla.program import Program

_OPERATIONS = {
    xla_model.REDUCE_SUM: dist.ReduceOp.SUM,
    xla_model.REDUCE_MUL: dist.ReduceOp.PRODUCT,
    xla_model.REDUCE_MIN: dist.ReduceOp.MIN,
    xla_model.REDUCE_MAX: dist.ReduceOp.MAX,
}
# Words in the names of torch_xla's C++ collectives (2.8), and the namespace of torch's functional collectives.
_COMMUNICATING = ("reduce", "gather", "all_to_all", "permute", "send", "recv")
_FUNCTIONAL = "_c10d_functional"


def make_one_world(world: World, changes: Changes) -> None:
    """Make torch_xla report `world` until `changes` are undone, and raise in calls of the runtime's own collectives.

    torch_xla's collectives then use the default process group, which must be a `TwoSidedGroup`.
    """
    apply(ONE_WORLD_PATCHES, world, changes)
    for name in vars(torch_xla._XLAC):
        if name.startswith("_xla_") and any(word in name for word in _COMMUNICATING):
            changes.attribute(torch_xla._XLAC, name, _refusing(name.removeprefix("_xla_")))
    library: Any = torch.library.Library(_FUNCTIONAL, "IMPL")  # type: ignore[no-untyped-call]
    changes.then(library._destroy)
    operators: list[str] = torch._C._dispatch_get_all_op_names()
    with warnings.catch_warnings(action="ignore"):  # warnings about replaced kernels
        for space, _, name in (operator.partition("::") for operator in operators):
            if space == _FUNCTIONAL and name != "wait_tensor":
                library.impl(name, _refusing(f"functional {name}"), "XLA", allow_override=True)


def _spawn(
    program: "Program", fn: Callable[..., Any], args: Any = (), nprocs: int | None = None, *_: Any, **__: Any
) -> None:
    """Replace `xmp.spawn`: call the function in this process, since all ranks run already.

    UserError if the script requests more or fewer ranks than the job has, by `nprocs` or as one for each device.
    """
    world, count = program.world, runtime.addressable_runtime_device_count()
    if program.sharding is not None:
        why = "torch_xla.launch and xmp.spawn start a rank for each device, and --mesh uses all in one process"
        raise UserError(f"{why}; call the function itself, or leave --mesh out")
    if nprocs not in (None, world.size):
        why = f"the script asks torch_xla for nprocs={nprocs} processes, and {world.launcher} has started {world.size}"
        raise UserError(f"{why}; start that many ranks, or leave nprocs out")
    if count > 1 and nprocs is None:
        why = f"torch_xla.launch and xmp.spawn start a rank for each device, and this process has {count} of them"
        raise UserError(f"{why}; start {count} ranks with one device each, or write the script for --mesh")
    fn(world.rank, *args)


def _launch(
    program: "Program",
    fn: Callable[..., Any],
    args: Any = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    _spawn(program, fn, args, 1 if debug_single_process else None)


def _use_spmd(original: Callable[..., Any], program: "Program") -> Callable[..., None]:
    def use_spmd(auto: bool = False) -> None:
        asked = "use_spmd(auto=True)" if auto else "use_spmd()"
        pjrt.check_one_program(asked, program.world.size, auto=auto, meshed=program.sharding is not None)
        if program.sharding is None:
            original(auto)

    return use_spmd


def _kept_parameters(original: Callable[..., Any], _: object) -> Callable[..., Any]:
    options = torch.__future__

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        before = options.get_swap_module_params_on_conversion()
        options.set_swap_module_params_on_conversion(True)  # not for the whole job: load_state_dict obeys it, too
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            if "Couldn't swap" not in str(error):
                raise
        finally:
            options.set_swap_module_params_on_conversion(before)
        return original(self, *args, **kwargs)  # without a swap, if a wrapper such as DDP holds the parameters

    return to


def _on_request(original: Callable[..., Any], _: object) -> Callable[..., Any]:
    data_loader: Any = sys.modules[original.__module__]

    def iterate(self: Any) -> Iterator[Any]:
        if self._rng_types is not None:
            data_loader.synchronize_rng_states(self._rng_types, self._loader.synchronized_generator)
        for batch in self._loader:
            yield data_loader.send_to_device(batch, self.device)

    return iterate


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Any = None, pin_layout: bool = True) -> Any:
    """Replace `xm.all_reduce`: reduce over all ranks of the job, one tensor into a new tensor, several in place."""
    if groups or reduce_type not in _OPERATIONS:
        what = f"the reduction {reduce_type!r}" if reduce_type not in _OPERATIONS else "groups"
        why = f"xm.all_reduce: several CPU processes reduce through the host, which does not do {what}"
        raise UserError(f"{why}; leave that out")
    if dist.get_world_size() == 1:  # one process that uses one of several devices
        return inputs.clone() if isinstance(inputs, torch.Tensor) else inputs
    tensors = [inputs.clone()] if isinstance(inputs, torch.Tensor) else list(inputs)
    if tensors:
        group: Any = dist.group.WORLD
        reduce_flat(group.host, tensors, _OPERATIONS[reduce_type], scale)
    return tensors[0] if isinstance(inputs, torch.Tensor) else inputs


def all_gather(
    value: Any, dim: int = 0, groups: Any = None, output: Any = None, pin_layout: bool = True, *ids: Any, **more: Any
) -> Any:
    """Replace `xm.all_gather`: return the `value` of every rank, concatenated along `dim`, on the device.

    Values without dimensions are joined into a vector. If `output` is given, the result is copied into it. Later
    arguments concern the runtime's channel numbers and layouts, and are ignored.
    """
    if groups:
        raise UserError("xm.all_gather: several CPU processes gather through the host; leave groups out")
    if isinstance(value, (list, tuple)):
        return [all_gather(one, dim, output=output and output[place]) for place, one in enumerate(value)]
    (own,) = fetch([value])
    everyones = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    joined = torch.stack(everyones) if own.dim() == 0 else torch.cat(everyones, dim)
    result = joined.to(value.device)
    return result if output is None else output.copy_(result)


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """Replace `xm.xla_rendezvous`: return every rank's payload, in rank order."""
    if ordinals and len(ordinals) != dist.get_world_size():
        raise UserError(f"xm.rendezvous({tag!r}): only all ranks can meet; leave replicas {list(ordinals)} out")
    torch_xla.sync(reset_scope=False)
    payloads: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(payloads, payload)
    return payloads


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        why = f"{name} of PyTorch/XLA does not work between CPU processes, which communicate through the host"
        raise UserError(f"{why}; use torch.distributed's own, or one process with --mesh")

    return refuse


def _answering(field: str) -> Callable[[Any, World], Callable[[], int]]:
    return lambda _, world: lambda: getattr(world, field)


_ANSWERS = {  # Functions of torch_xla.runtime, and the field of `World` that each returns.
    "world_size": "size",
    "global_device_count": "size",
    "process_count": "size",
    "global_ordinal": "rank",
    "process_index": "rank",
    "local_ordinal": "local_rank",
    "local_process_count": "local_size",
    "host_index": "node_rank",
}
_ALONE = "the runtime takes each CPU process for a world of its own (pytorch/xla#9496)"

ONE_WORLD_PATCHES = (  # For CPU processes, which communicate through the host. Context: the `World`.
    *(Patch(f"torch_xla.runtime:{name}", _ALONE, _answering(field), "") for name, field in _ANSWERS.items()),
    Patch("torch_xla.core.xla_model:all_reduce", _ALONE, lambda *_: all_reduce, "reduce_type, inputs, scale, ..."),
    Patch("torch_xla.core.xla_model:all_gather", _ALONE, lambda *_: all_gather, "value, dim, groups, output, ..."),
    Patch("torch_xla.core.xla_model:xla_rendezvous", _ALONE, lambda *_: xla_rendezvous, "payload, ordinals, tag"),
    Patch(
        "torch.nn.parallel.distributed:DistributedDataParallel.__init__",
        "gradients that are views of a bucket are read before the graph is computed, or each keeps a copy of it",
        lambda constructor, _: adjusted(
            constructor, lambda given: given.setdefault("gradient_as_bucket_view", True), ddp_models.add
        ),
        "self, module, ...",
    ),
)

_RUN = "the ranks run already"

PATCHES = (  # For every job on xla. The context is its `Program`.
    Patch("torch_xla:launch", _RUN, lambda _, program: partial(_launch, program), "fn, args, ..."),
    Patch(
        "torch_xla.distributed.xla_multiprocessing:spawn",
        _RUN,
        lambda _, program: partial(_spawn, program),
        "fn, args, nprocs, ...",
    ),
    Patch("torch_xla.runtime:use_spmd", "SPMD is for one process; --mesh has turned it on", _use_spmd, "auto"),
    Patch(
        "torch.distributed:new_group",
        "torch_xla's (2.8) ignores the job's timeout and waits for 30 minutes",
        lambda *_: distributed_c10d.new_group,
    ),
    Patch(
        "torch.nn.modules.module:Module.to",
        "torch (2.9) makes new parameters for XLA's device, which an optimizer and tied modules do not get",
        _kept_parameters,
        "self, args, kwargs",
    ),
)

LOADER_PATCHES = (  # For several ranks. accelerate's loader prefetches a batch in a thread.
    Patch(
        "accelerate.data_loader:MpDeviceLoaderWrapper.__iter__",
        "a batch that is prefetched is not known as the last one, so gather_for_metrics keeps repeated samples",
        _on_request,
        "self",
    ),
    Patch(
        "accelerate.data_loader:MpDeviceLoaderWrapper.__init__",
        "its attributes are used by the __iter__ above",
        parameters="self, dataloader, device",
    ),
)
