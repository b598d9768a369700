"""The xla backend: on CPUs through the host, on GPUs and TPUs by the runtime itself, or one program over a mesh.

torch is imported in methods: see `Backend`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from cpudist.backends.interface import Backend
from cpudist.backends.options import Option
from cpudist.backends.xla import devices
from cpudist.changes import Changes
from cpudist.console import say
from cpudist.errors import UserError

if TYPE_CHECKING:
    from types import ModuleType

    import torch
    from torch.distributed import Store

    from cpudist.backends.calls import Calls
    from cpudist.backends.ccl.ccl_backend import CclBackend
    from cpudist.backends.gloo import GlooBackend
    from cpudist.backends.xla.program import Program
    from cpudist.backends.xla.sharding import Sharding
    from cpudist.world import World


class XlaBackend(Backend):
    """PyTorch/XLA. `start` imports torch_xla once the device is chosen, since it reads the environment then."""

    name = "xla"
    options = (
        Option("device", "what PyTorch/XLA computes on (PJRT_DEVICE)", choices=devices.KINDS),
        Option(
            "mesh",
            "one program over a mesh of all devices: data=4, fsdp=4, data=2,model=2; -1 stands for the rest",
            metavar="AXES",
        ),
        Option("sharding", "how parameters lie on the mesh: JSON, patterns of names to their specs", metavar="FILE"),
        Option("show_sharding", "print how tensors lie on the devices", type=bool, default=False),
    )
    companions = ("torch_xla",)
    device_type = "xla"
    optimizations = frozenset({"autocast"})
    # The advice to start with torch.distributed.launch, which transformers gives beside every process group on XLA.
    hidden_warnings = ("parallel_mode != ParallelMode.DISTRIBUTED",)

    def __init__(self) -> None:
        self._world_size = 1
        self._changes = Changes()
        self._program: Program | None = None
        self._prepared: WeakSet[torch.nn.Module] = WeakSet()
        self._choice = devices.Choice("cpu", "")
        self.configure()

    def configure(self, **values: Any) -> None:
        super().configure(**values)
        for option in self.options:
            if self.configured[option.name] and not self.applies(option.name, self.configured):
                raise UserError(f"{option.flag} is for a mesh; give --mesh data=-1 or the like")

    @classmethod
    def applies(cls, name: str, values: Mapping[str, Any]) -> bool:
        return super().applies(name, values) and not (name.endswith("sharding") and not values.get("mesh"))

    @property
    def _sharding(self) -> Sharding | None:
        return None if self._program is None else self._program.sharding

    @property
    def _host(self) -> CclBackend | GlooBackend | None:
        return None if self._program is None else self._program.host

    @property
    def _through_host(self) -> bool:
        return self._program is not None and self._program.through_host

    @classmethod
    def findings(cls, environment: Mapping[str, str]) -> Iterator[tuple[Literal["error", "warning", "ok"], str, str]]:
        # Where torch_xla does not fit torch, the check of versions says so.
        return devices.findings(environment) if devices.missing() is None else iter(())

    @classmethod
    def devices_here(cls) -> str | None:
        found = {kind.upper(): devices.count(kind) for kind in devices.KINDS}
        return ", ".join(f"{count} {kind} device{'s' * (count > 1)}" for kind, count in found.items() if count) or None

    def processes_per_node(self, asked: int) -> int:
        """Return one process for each device, where devices are not made of the CPU."""
        if reason := self.unavailable():
            raise UserError(f"backend xla cannot be used: {reason}")
        kind = self._choice.kind
        found = devices.count(kind)
        if found is None or found == asked:
            return asked
        say(f"xla: starting {found} processes in the place of {asked}, one for each {kind.upper()} device of this node")
        return found

    @classmethod
    def find_others(cls, options: Mapping[str, Any]) -> Mapping[str, str]:
        if not options.get("mesh") or devices.missing() is not None:
            return {}
        try:
            choice = devices.choose(options.get("device"), os.environ)
        except UserError:  # `unavailable` says so
            return {}
        if choice.kind != "tpu" or devices.lacks("tpu") is not None:
            return {}
        from cpudist.backends.xla import joining

        return joining.pod_worker()

    def unavailable(self) -> str | None:
        if reason := devices.missing():
            return reason
        try:
            self._choice = devices.choose(self.configured["device"], os.environ)
        except UserError as error:
            return str(error)
        return devices.lacks(self._choice.kind)

    def start(self, world: World, store: Store, timeout: float) -> None:
        import torch.distributed as dist

        from cpudist.backends.process_group import bound_new_groups

        first = self._program is None  # a script may destroy its process group and make another one
        bound_new_groups(timeout)
        limit = timedelta(seconds=timeout)
        try:
            self._program = self._program or self._make_program(world, store, timeout)
            name = self._program.group_name()
            dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size, timeout=limit)
        except BaseException:
            self.stop()
            raise
        if first and world.rank == 0:
            self._program.announce()

    def _make_program(self, world: World, store: Store, timeout: float) -> Program:
        self._world_size = world.size
        devices.check_one_program(os.environ, world.size, meshed=self.configured["mesh"] is not None)
        devices.set_variables(self._choice, self.configured["mesh"], self._changes)
        from cpudist.backends.xla.program import Program

        return Program(self._choice, self.configured, world, store, timeout, self._changes)

    def variables(self) -> Mapping[str, str]:
        return {"USE_TORCH_XLA": "1"}  # accelerate and transformers look for it first then

    def prepare(self, model: torch.nn.Module) -> None:
        if self._program is not None and model not in self._prepared:  # several Trainers may train one model
            self._prepared.add(model)
            self._program.watch(model)

    def library_patches(self) -> Mapping[str, Callable[[Changes, ModuleType], None]]:
        if self._world_size == 1:
            return {}
        from cpudist.backends.xla import patches

        return {"accelerate.data_loader": patches.patch_accelerate_loader}

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Wrap in `DistributedDataParallel`, which takes `options`; under a mesh, place the model on it instead."""
        from torch.distributed import get_world_size
        from torch.nn.parallel import DistributedDataParallel

        self.prepare(model)
        if self._sharding is not None:
            self._sharding.check_ddp_options(options)
            return model
        if not self._through_host:  # PyTorch/XLA's documentation: DDP alone may not start from rank 0's weights
            from torch_xla.core import xla_model

            xla_model.broadcast_master_param(model)
        wrapped = DistributedDataParallel(model, **{**self.ddp_options(), **options})
        if get_world_size() == 1:  # buckets would take a tenth of a small step, for nothing
            wrapped.require_backward_grad_sync = False
        return wrapped

    def check_float16(self) -> None:
        if self._choice.kind != "cuda":
            raise UserError(
                f"float16 is for GPUs (--device cuda), and xla computes on {self._choice.kind.upper()} here; use "
                "bfloat16 (--bf16) or float32"
            )

    def autocast(self, dtype: torch.dtype) -> torch.autocast:
        import torch

        if dtype is not torch.float16:
            return super().autocast(dtype)
        from torch_xla.amp import autocast

        return autocast(self.device(), dtype=dtype)  # type: ignore[no-any-return]

    def skip_on_device(self, optimizer: torch.optim.Optimizer) -> str | None:
        from cpudist.backends.xla import syncfree

        return syncfree.make(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        super().step(optimizer, scaler)
        self.end_step()

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._sharding is not None and tensor.device.type == "xla":  # one program: it is every process's already
            return tensor.detach().cpu().double()
        return super().mean(tensor)

    def scaler(self) -> Any:
        try:
            from torch_xla.amp import GradScaler
        except ImportError as error:
            raise UserError("torch_xla 2.9 has no GradScaler; use bfloat16, or torch_xla 2.8 with torch 2.8") from error
        return GradScaler()

    def batches(self, loader: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of `loader` on the device, to which they move ahead of their use."""
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        spec = None if self._sharding is None else self._sharding.spec_of_parts()
        return MpDeviceLoader(loader, self.device(), input_sharding=spec)  # type: ignore[no-any-return]

    def end_step(self, *, wait: bool = False) -> None:
        import torch_xla

        torch_xla.sync(wait=wait, reset_scope=False)  # the caller may be inside a program's `xp.StepTrace`
        if self._program is not None:
            self._program.graphs.end_step()

    def synchronize(self) -> None:
        self.end_step(wait=True)

    def random_state(self) -> int:
        from torch_xla.core import xla_model

        return int(xla_model.get_rng_state())

    def set_random_state(self, state: int) -> None:
        from torch_xla.core import xla_model

        xla_model.set_rng_state(state)

    def ddp_options(self) -> dict[str, Any]:
        # Each bucket that goes through the host cuts the graph in two, so few large ones are fastest.
        return {"gradient_as_bucket_view": True, "bucket_cap_mb": 100}

    def set_timeout(self, seconds: float) -> None:
        if self._host is None:
            if self._world_size > 1:  # a process that is alone on a mesh waits for nobody
                super().set_timeout(seconds)
            return
        import torch.distributed as dist

        from cpudist.backends.process_group import bound_new_groups

        bound_new_groups(seconds)
        if dist.is_initialized():
            group: Any = dist.group.WORLD
            self._host._bound(group.host, seconds)

    def transport(self) -> str | None:
        if self._host is not None and self._through_host:
            return self._host.transport()
        return None if self._program is None else "pjrt"

    def calls(self) -> Calls | None:
        return None if self._host is None else self._host.calls()

    def details(self) -> dict[str, Any]:
        import torch_xla

        return {"torch_xla": torch_xla.__version__, **(self._program.details() if self._program is not None else {})}

    def communication_seconds(self) -> float | None:
        return self._host.communication_seconds() if self._host is not None and self._through_host else None

    def stop(self) -> None:
        import torch.distributed as dist

        from cpudist.backends.process_group import bound_new_groups

        if dist.is_initialized():
            if self._host is not None:
                self._host.stop()
            else:
                dist.destroy_process_group()
        bound_new_groups(None)
        self._changes.undo()
        self._program = None
