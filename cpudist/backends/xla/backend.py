"""The xla backend as cpudist sees it: on the CPU through the host, on GPUs and TPUs the runtime's own, or one mesh."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed import constants, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.base import Backend
from cpudist.backends.xla import devices, joining, versions
from cpudist.changes import Changes
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from torch.distributed import Store

    from cpudist.backends.xla.graphs import Graphs
    from cpudist.backends.xla.host import HostCcl, HostGloo
    from cpudist.backends.xla.spmd.sharding import Sharding
    from cpudist.world import World


class XlaBackend(Backend):
    """PyTorch/XLA. torch_xla is imported by `start`, once the device is chosen: it reads the environment then."""

    name = "xla"
    device_type = "xla"
    fixed_shapes = True
    optimizations = frozenset({"autocast"})

    def __init__(self) -> None:
        self._asked: str | None = None
        self._mesh: str | None = None
        self._table: str | None = None
        self._show = False
        self._changes: Changes | None = None
        self._host: HostCcl | HostGloo | None = None
        self._sharding: Sharding | None = None
        self._graphs: Graphs | None = None
        self._prepared: WeakSet[torch.nn.Module] = WeakSet()
        self._choice = devices.Choice("cpu", "")

    def configure(  # type: ignore[override]
        self,
        device: str | None = None,
        mesh: str | None = None,
        sharding: str | None = None,
        show_sharding: bool = False,
    ) -> None:
        """Take the options of `cpudist-train --backend xla`.

        Args:
            device: one of `devices.KINDS`; None takes what PJRT_DEVICE says, or what is there.
            mesh: the axes of one mesh over all devices, such as "data=2,model=2"; see `spmd.mesh.parse`.
            sharding: a JSON file that says how parameters lie on the mesh; see `spmd.table.read`.
            show_sharding: whether rank 0 prints how parameters and batches lie on the devices.
        """
        if (sharding or show_sharding) and not mesh:
            raise UserError(
                f"--{'sharding' if sharding else 'show-sharding'} is for a mesh; give --mesh data=-1 or the like"
            )
        self._asked, self._mesh, self._table, self._show = device, mesh, sharding, show_sharding

    def find_others(self) -> Mapping[str, str]:
        if self._mesh is None or self.unavailable() is not None or self._choice.kind != "tpu":
            return {}
        from cpudist.backends.xla import pod

        return pod.place()

    def unavailable(self) -> str | None:
        reason = versions.missing()
        if reason is not None:
            return reason
        try:
            self._choice = devices.choose(self._asked, os.environ)
        except UserError as error:
            return str(error)
        return devices.lacks(self._choice.kind)

    def start(self, world: World, store: Store, timeout: float) -> None:
        # Groups that are made without a timeout would otherwise wait for torch's half an hour.
        distributed_c10d.default_pg_timeout = timedelta(seconds=timeout)
        first = self._changes is None
        try:
            if first:
                self._open(world, store, timeout)
            self._make_group(world, store, timeout)
        except BaseException:
            self.stop()
            raise
        if first and world.rank == 0:
            self._announce()

    def _make_group(self, world: World, store: Store, timeout: float) -> None:
        if self._sharding is not None:
            dist.init_process_group("gloo", **joining.place(world, store, timeout))
        elif self._host is not None:
            from cpudist.backends.xla.group import name_with

            dist.init_process_group(name_with(self._host), **joining.place(world, store, timeout))
        else:
            joining.join_runtime(world)

    def _open(self, world: World, store: Store, timeout: float) -> None:
        """What is done once for a job, however often a script makes its process group anew."""
        self._changes = Changes()
        variables = {"PJRT_DEVICE": self._choice.kind.upper(), **self._devices_wanted()}
        for name, value in variables.items():
            self._changes.variable(name, value)
        _check_first(self._choice.kind, os.environ.get("CPU_NUM_DEVICES", "1"), self._mesh is not None)
        from torch_xla import runtime

        from cpudist.backends.xla import launching, several
        from cpudist.backends.xla.graphs import Graphs

        if self._mesh is not None:
            from cpudist.backends.xla.spmd.sharding import Sharding

            self._sharding = Sharding.start(self._mesh, self._table, self._show, world)
        elif self._choice.kind == "cpu":
            self._host = joining.agree_on_host(world, store, timeout)
            if world.size > 1 or runtime.addressable_runtime_device_count() > 1:
                several.make_one_world(world, self._changes)
        # Not earlier: it is the runtime's own that has begun the mesh.
        launching.run_in_place(world, self._changes, mesh=self._sharding is not None)
        launching.one_program_or_none(world, self._changes, mesh=self._sharding is not None)
        self._graphs = Graphs(speaks=world.rank == 0)

    def _announce(self) -> None:
        """Say what is computed on. Not before the group is made: only then may the runtime be asked."""
        from torch_xla import runtime

        count = runtime.addressable_runtime_device_count()
        kind = self._choice.kind.upper()
        say(f"xla: {count} {kind} device{'s' * (count > 1)} in each process; {self._choice.because}")
        if count > 1 and self._sharding is None:
            say(
                f"warning: xla uses one of the {count} devices of each process, unless the script calls use_spmd(); "
                "give --mesh data=-1 to use all"
            )

    def _devices_wanted(self) -> dict[str, str]:
        """On the CPU a mesh gets as many devices as it has places, where the user has not said how many there are."""
        if self._mesh is None or self._choice.kind != "cpu" or "CPU_NUM_DEVICES" in os.environ:
            return {}
        from cpudist.backends.xla.spmd import mesh

        places = mesh.places(mesh.parse(self._mesh))
        return {} if places is None else {"CPU_NUM_DEVICES": str(places)}

    def variables(self) -> Mapping[str, str]:
        return {"USE_TORCH_XLA": "1"}  # accelerate and transformers then take it before they look for others

    def prepare(self, model: torch.nn.Module) -> None:
        if model in self._prepared:  # by an earlier Trainer
            return
        self._prepared.add(model)
        if self._graphs is not None:
            self._graphs.watch(model)
        if self._sharding is not None:
            self._sharding.apply(model)

    def lay_out_by(self, table: Mapping[str, tuple[Any, ...]], whose: str) -> None:
        if self._sharding is not None:
            from cpudist.backends.xla.spmd.table import Table

            self._sharding.bring(Table(table, whose))

    def wrap(self, model: torch.nn.Module, *, shard_optimizer: bool = False, **options: Any) -> torch.nn.Module:
        """Wrap in `DistributedDataParallel`, whose options these are; under a mesh, lay the model out on it instead."""
        if shard_optimizer:
            raise UserError("shard_optimizer=True is for the backends ccl and gloo; leave it out on xla")
        self.prepare(model)
        if self._sharding is not None:
            if options:
                raise UserError(f"under --mesh there is no DDP to take {', '.join(options)}; leave them out")
            return model
        if self._host is None:  # as the runtime's documentation has it: DDP alone may not start from rank 0's weights
            from torch_xla.core import xla_model

            xla_model.broadcast_master_param(model)
        wrapped = DistributedDataParallel(model, **{**self.ddp_options(), **options})
        if dist.get_world_size() == 1:  # nothing to exchange, and buckets would take a tenth of a small step
            wrapped.require_backward_grad_sync = False
        return wrapped

    def check_float16(self) -> None:
        if self._choice.kind != "cuda":
            raise UserError(
                f"float16 is for GPUs (--device cuda), and xla computes on {self._choice.kind.upper()} here; use "
                "bfloat16 (--bf16) or float32"
            )

    def autocast(self, dtype: torch.dtype) -> torch.autocast:
        if dtype is not torch.float16:
            return super().autocast(dtype)
        from torch_xla.amp import autocast

        return autocast(self.device(), dtype=dtype)  # type: ignore[no-any-return]

    def skip_on_device(self, optimizer: torch.optim.Optimizer) -> str | None:
        from cpudist.backends.xla import syncfree

        return syncfree.make(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        super().step(optimizer, scaler)
        import torch_xla

        torch_xla.sync()
        self._end_step()

    def synchronize(self) -> None:
        import torch_xla

        torch_xla.sync(wait=True)
        self._end_step()

    def _end_step(self) -> None:
        if self._graphs is not None:
            self._graphs.end_step()

    def ddp_options(self) -> dict[str, Any]:
        # Each bucket that goes through the host cuts the graph in two, so few large ones are fastest.
        return {"gradient_as_bucket_view": True, "bucket_cap_mb": 100}

    def set_timeout(self, seconds: float) -> None:
        if self._host is None:
            super().set_timeout(seconds)
            return
        distributed_c10d.default_pg_timeout = timedelta(seconds=seconds)
        group: Any = distributed_c10d._get_default_group() if dist.is_initialized() else None
        if group is not None:
            self._host._bound(group.inner, seconds)

    def transport(self) -> str | None:
        if self._host is not None:
            return self._host.transport()
        return "pjrt" if self._changes is not None else None

    def details(self) -> dict[str, Any]:
        import torch_xla
        from torch_xla import runtime

        details: dict[str, Any] = {
            "torch_xla": torch_xla.__version__,
            "devices": f"{runtime.addressable_runtime_device_count()} of {self._choice.kind.upper()} in each process",
            "device_variables": devices.explained(os.environ),
        }
        if self._host is not None:
            details["gradients"] = f"through the host, over {self._host.name}"
            details.update(self._host.details())
        if self._sharding is not None:
            details["mesh"] = self._sharding.mesh_text
            details["sharding"] = f"parameters by the table of {self._sharding.table.whose}"
        if self._graphs is not None:
            details.update(self._graphs.summary())
        return details

    def communication_seconds(self) -> float | None:
        return None if self._host is None else self._host.communication_seconds()

    def stop(self) -> None:
        if dist.is_initialized():
            if self._host is not None and self._host.name == "ccl":
                self._host.stop()
            else:
                dist.destroy_process_group()
        distributed_c10d.default_pg_timeout = constants.default_pg_timeout
        if self._changes is not None:
            self._changes.undo()
            self._changes = None
        self._sharding = self._host = None


_first: tuple[object, ...] | None = None  # what the runtime was started with in this process


def _check_first(*wanted: object) -> None:
    """The runtime lives as long as its process, and takes its devices, and whether it is one program, only once."""
    global _first
    if _first not in (None, wanted):
        raise UserError(
            "PyTorch/XLA cannot change its devices or take a --mesh later in one process; start another one"
        )
    _first = wanted
