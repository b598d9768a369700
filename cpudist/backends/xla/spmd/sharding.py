"""One job's mesh, and how its model's parameters and its batches lie on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch_xla import runtime
from torch_xla.distributed import spmd

from cpudist.backends.xla.spmd import mesh, picture, specs, table
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.world import World


class Sharding:
    """The mesh that a job computes on.

    Args:
        axes: of the mesh, one device for each place.
        parameters: how parameters lie on it.
        show: writes a line for the user, if he wants to see how tensors lie.
        speaks: whether this is the process that warns the user.
    """

    def __init__(
        self, axes: tuple[mesh.Axis, ...], parameters: table.Table, show: Callable[[str], object] | None, speaks: bool
    ) -> None:
        self.mesh = mesh.make(axes, runtime.device_type())
        self.mesh_text = mesh.text_of(axes)
        self.sizes = {axis.name: axis.size for axis in axes}
        self.table = parameters
        self._show = show
        self._speaks = speaks
        batch = tuple(name for name in mesh.BATCH_AXES if name in self.sizes)
        self._batch: specs.Entry = batch or None

    @classmethod
    def start(cls, text: str, table_file: str | None, show: bool, world: World) -> Sharding:
        """Let the runtime work as one program; must come before the first tensor on a device.

        Raises:
            UserError: mesh or table are wrong, or the runtime cannot connect the job's processes.
        """
        axes = mesh.parse(text)
        parameters = table.DEFAULT if table_file is None else table.read(table_file)
        become_one_program()
        if runtime.process_count() != world.size:
            raise UserError(
                f"--mesh is one program over the devices of one runtime, which has connected {runtime.process_count()} "
                f"of the job's {world.size} processes and works beside no other process group; on the CPU, start one "
                "process, or leave --mesh out"
            )
        first = world.rank == 0
        fitting = mesh.fit(axes, runtime.global_runtime_device_count())
        sharding = cls(fitting, parameters, print if show and first else None, speaks=first)
        spmd.set_global_mesh(sharding.mesh)
        return sharding

    def bring(self, parameters: table.Table) -> None:
        """Let parameters lie as `parameters` says, unless the user has named a table."""
        if not self.table.exact:
            self.table = parameters

    def apply(self, model: torch.nn.Module) -> None:
        """Lay the parameters of `model` out on the mesh, and from now on its inputs, too."""
        if self._show:
            self._show(picture.of_mesh(self.mesh_text, self.mesh))
        parameters = dict(model.named_parameters())
        if self.table.exact and self._speaks:
            for pattern in table.without_use(self.table, list(parameters)):
                say(f"--sharding {self.table.whose}: {pattern!r} decides about no parameter of this model")
        for name, parameter in parameters.items():
            spec = table.spec_for(name, parameter.shape, self.sizes, self.table)
            self._lay(name, parameter, spec)
        model.register_forward_pre_hook(self._lay_inputs, with_kwargs=True)

    def _lay(self, name: str, tensor: Tensor, spec: specs.Spec) -> None:
        if any(specs.names_in(entry) for entry in spec):
            spmd.mark_sharding(tensor, self.mesh, spec)
        if self._show:
            self._show(picture.of_tensor(name, tensor, spec))

    def _lay_inputs(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        show = self._show
        self._show = show if module.training else None
        tree_map(lambda leaf: self._lay_input(leaf, module.training), (args, kwargs))
        self._show = None if module.training else show  # the first batch to train on is as good as any

    def _lay_input(self, value: Any, training: bool) -> None:
        if self._batch is None or not isinstance(value, Tensor) or value.device.type != "xla" or value.dim() == 0:
            return
        if value.shape[0] == 1 or (not training and value.shape[0] % specs.parts(self._batch, self.sizes)):
            return  # something for all samples alike, or the last samples of an evaluation: every device has all of it
        if runtime.process_count() > 1:
            _check_fed_in_parts(value)
            return
        self._lay("a batch", value, specs.check("a batch", value.shape, (self._batch,), self.sizes))


_is_one_program = False  # for as long as this process lives


def become_one_program() -> None:
    """Let the runtime make one program of all devices; what has been said before the first tensor stays so."""
    global _is_one_program
    if _is_one_program:  # an earlier job's: what remains of it is what the runtime says of itself, a variable
        os.environ["XLA_USE_SPMD"] = "1"
    else:
        runtime.use_spmd()
    _is_one_program = True


def _check_fed_in_parts(batch: Tensor) -> None:
    """Refuse a batch that a host has moved to its devices by itself: the runtime would take it for the whole one.

    Raises:
        UserError: it does not lie in parts on the mesh already.
    """
    if not isinstance(spmd.wrap_if_sharded(batch), spmd.XLAShardedTensor):
        raise UserError(
            "several hosts feed their own part of a batch: give torch_xla's MpDeviceLoader an input_sharding with "
            "minibatch=True"
        )
