"""One job's mesh of devices, and the placement of its model's parameters and batches on it."""

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch_xla
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary
from torch_xla import runtime
from torch_xla.distributed import spmd

from cpudist.backends.xla import mesh
from cpudist.backends.xla.mesh import Entry, Spec
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.patching.patch import Patch, apply
from cpudist.patching.undo import Changes
from cpudist.world import World


class Sharding:
    """The mesh of a job that is one program over all devices. Create it before any tensor is on a device."""

    def __init__(self, options: Mapping[str, Any], world: World, changes: Changes) -> None:
        axes = mesh.parse(options["mesh"])
        if world.size > 1:
            why = f"--mesh is one program over the devices of one process, and this job has {world.size}"
            raise UserError(f"{why}; start one, or leave --mesh out")
        _become_one_program()
        count = runtime.global_runtime_device_count()
        if count == 1 and mesh.places(axes) is None:
            say(f"warning: --mesh {options['mesh']} has one device; on the CPU set CPU_NUM_DEVICES")
        self.sizes = mesh.fit(axes, count)
        self.mesh = spmd.Mesh(list(range(count)), tuple(self.sizes.values()), tuple(self.sizes))
        self.mesh_text = mesh.text_of(self.sizes)
        self._show: Callable[[str], object] | None = print if options["show_sharding"] else None
        self._batch: Entry = tuple(name for name in mesh.BATCH_AXES if name in self.sizes)
        self._placed: Any = WeakIdKeyDictionary()  # parameter that the mesh divides -> its name
        self._mark: Callable[..., Any] = spmd.mark_sharding
        changes.then(partial(spmd.set_global_mesh, spmd.get_global_mesh()))
        spmd.set_global_mesh(self.mesh)
        apply(PATCHES, self, changes)

    def check_ddp_options(self, options: Mapping[str, Any]) -> None:
        """Raise `UserError` if a DDP option would change results; under a mesh DDP does not wrap the model."""
        inspect.signature(DistributedDataParallel).bind(None, **options)
        for name in ("process_group", "device_mesh", "mixed_precision"):
            if options.get(name) is not None:
                raise UserError(f"under --mesh there is no DDP to take {name}=, which changes results; leave it out")

    def mark_for_script(self, t: Any, mesh: Any, partition_spec: Any) -> Any:
        """Replace `mark_sharding` for scripts; UserError for a parameter that is on the mesh already."""
        if t in self._placed:
            remedy = "leave one of them out"
            raise UserError(f"the script calls mark_sharding for {self._placed[t]}, which --mesh has placed; {remedy}")
        return self._mark(t, mesh, partition_spec)

    def watch(self, model: torch.nn.Module) -> Any:
        """Place the parameters of `model` on the mesh, and its inputs by a hook, whose handle is returned."""
        if self._show:
            self._show(f"mesh {self.mesh_text} of {self.mesh.size()} devices, in row-major order:")
        for name, parameter in model.named_parameters():
            spec = mesh.spec_for(name, parameter.shape, self.sizes)
            self._place(name, parameter, spec)
            if any(spec):
                self._placed[parameter] = name
        # torch.compile cannot trace mark_sharding (2.9).
        place = torch.compiler.disable(self._place_inputs)  # type: ignore[no-untyped-call]
        return model.register_forward_pre_hook(place, with_kwargs=True)

    def _place(self, name: str, tensor: Tensor, spec: Spec) -> None:
        if any(spec):
            self._mark(tensor, self.mesh, tuple(entry or None for entry in spec))
        if self._show:
            # XLA's own notation of the pieces and of their devices.
            sharding = torch_xla._XLAC._get_xla_sharding_spec(tensor) or "{replicated}"
            self._show(f"{name}  {' x '.join(map(str, tensor.shape))}  {sharding}")

    def _place_inputs(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        show = self._show
        self._show = show if module.training else None
        tree_map(lambda leaf: self._place_input(leaf, module.training), (args, kwargs))
        self._show = None if module.training else show  # only the first training batch is shown

    def _place_input(self, value: Any, training: bool) -> None:
        if not self._batch or not isinstance(value, Tensor) or value.device.type != "xla" or value.dim() == 0:
            return
        if value.shape[0] == 1 or (not training and value.shape[0] % mesh.parts(self._batch, self.sizes)):
            return  # Every device gets a copy of one value for all samples, and of an uneven batch of an evaluation.
        self._place("a batch", value, mesh.spec_of_batch(value.shape, self._batch, self.sizes))


_is_one_program = False  # SPMD mode stays on until the process ends

PATCHES = (
    Patch(
        "torch_xla.distributed.spmd.xla_sharding:mark_sharding",
        "a parameter that --mesh has placed would be placed twice, one of the two without effect",
        lambda _, sharding: sharding.mark_for_script,
        "t, mesh, partition_spec",
    ),
)


def _become_one_program() -> None:
    """Turn on the runtime's SPMD mode. This is possible only once, before the first tensor."""
    global _is_one_program
    if _is_one_program:  # An earlier job turned it on, and unset this variable at its end.
        os.environ["XLA_USE_SPMD"] = "1"
    else:
        runtime.use_spmd()
    _is_one_program = True
