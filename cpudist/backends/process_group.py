"""Base class of backends on `torch.distributed`: it creates the default process group, and wraps models in DDP."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import Store, constants, distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from cpudist.backends.compression import AUTO, NONE, POWERSGD_RANK
from cpudist.backends.ddp_waits import DdpWaits
from cpudist.backends.interface import Backend
from cpudist.console import option
from cpudist.errors import UserError
from cpudist.patching.on_import import after_import
from cpudist.patching.patch import Patch, apply
from cpudist.patching.undo import Changes
from cpudist.world import World

# accelerate and transformers read this at import; without it they use an accelerator's runtime if one is installed.
CPU_ONLY = {"USE_TORCH_XLA": "0"}

# `group_desc` of the process groups for background work, in which ranks may wait for a long time.
BACKGROUND = "cpudist background"

# Gradients of earlier steps are averaged exactly, because the first steps change parameters most. torch requires at
# least 2, because DDP rebuilds its buckets after the first step.
_FIRST_STEP_OF_POWERSGD = 10


class ProcessGroupBackend(Backend):
    """A backend that `init_process_group` creates by the same name. DDP reduces the gradients."""

    compressions: ClassVar[frozenset[str]] = frozenset({"powersgd"})
    _powersgd: Any = None  # state of torch's PowerSGD hook
    _ddp_waits: DdpWaits | None = None

    def start(self, world: World, store: Store, timeout: float) -> None:
        init_group(self.name, world, store, timeout)

    def change_libraries(self, changes: Changes) -> None:
        if self.devices.type == "cpu":  # on other devices DDP's sums are only queued when `DdpWaits` stops timing
            self._ddp_waits = DdpWaits(changes)
            apply(PATCHES, None, changes)
        # Otherwise accelerate moves models to "cpu:0", which corrupts prepacked weights of Intel's extension.
        for name, value in {"ACCELERATE_TORCH_DEVICE": self.devices.type, **CPU_ONLY}.items():
            changes.variable(name, value)
        # Modules that were imported before the job started have already read the variable of CPU_ONLY.
        for name in ("accelerate.utils.imports", "transformers.utils.import_utils"):
            changes.then(after_import(name, partial(_prefer_cpu, changes)))

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        return DistributedDataParallel(model, **{**self.ddp_options(), **options})

    def compress(self, model: torch.nn.Module, scheme: str) -> None:
        if not isinstance(model, DistributedDataParallel):
            if scheme in (AUTO, NONE):
                return
            raise UserError(f"compression by {scheme} is for gradients that DDP reduces; leave it out for this model")
        group = model.process_group
        schemes: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(schemes, scheme, group=group)
        if len(set(schemes)) > 1:
            given = ", ".join(sorted(set(schemes)))
            raise UserError(f"ranks differ in how gradients are compressed ({given}); give all of them the same")
        if scheme in (AUTO, NONE):
            return
        if model._comm_hooks:
            raise UserError(f"the model has a communication hook of its own; leave it out, or compression by {scheme}")
        self._register_hook(model, group, scheme)

    def _register_hook(self, model: DistributedDataParallel, group: Any, scheme: str) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        rank = int(scheme.partition(":")[2] or POWERSGD_RANK)
        self._powersgd = PowerSGDState(
            group, matrix_approximation_rank=rank, start_powerSGD_iter=_FIRST_STEP_OF_POWERSGD
        )
        model.register_comm_hook(self._powersgd, _one_bucket_at_a_time(powerSGD_hook))

    def compressed_bytes(self) -> tuple[int, int] | None:
        if self._powersgd is None:
            return None
        return 4 * self._powersgd.total_numel_before_compression, 4 * self._powersgd.total_numel_after_compression

    def communication_seconds(self) -> float | None:
        """Return the seconds of waits in DDP's backward passes; None without DDP, because c10d counts no waits."""
        return None if self._ddp_waits is None else self._ddp_waits.seconds()

    def ddp_options(self) -> dict[str, Any]:
        return {"gradient_as_bucket_view": True}  # otherwise each gradient is copied once more (docs/performance.md)

    def set_timeout(self, seconds: float) -> None:
        if dist.is_initialized():
            group = distributed_c10d._get_default_group()
            self._bound(group._get_backend(torch.device(self.devices.type)), seconds)
        bound_new_groups(seconds)

    def _bound(self, group: Any, seconds: float) -> None:
        """Set the timeout of `group`, a c10d backend; UserError if this torch cannot change it."""
        if not hasattr(group, "set_timeout"):  # gloo before torch 2.9 accepts a new timeout, but keeps the old one
            why = f"{self.name} of torch {torch.__version__} cannot change its timeout after the start"
            raise UserError(f"{why}; give {option('timeout')} instead of {seconds:g} in the script")
        group.set_timeout(timedelta(seconds=seconds))

    def stop(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        bound_new_groups(None)


def _one_bucket_at_a_time(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a communication hook that starts a bucket after it has completed the previous one.

    PowerSGD's hook calls three collectives for each bucket, each later one in a callback of the one before. With
    several buckets, ranks could call them in different orders.
    """
    last: torch.futures.Future[torch.Tensor] | None = None

    @functools.wraps(hook)  # keeps the hook's annotations, which DDP checks
    def in_turn(state: Any, bucket: Any) -> Any:
        nonlocal last
        average: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def begin(_: object) -> None:
            try:
                hook(state, bucket).add_done_callback(end)
            except Exception as error:  # noqa: BLE001 - the wait for the average raises it
                average.set_exception(error)  # type: ignore[arg-type]

        def end(found: torch.futures.Future[torch.Tensor]) -> None:
            try:
                average.set_result(found.value())
            except Exception as error:  # noqa: BLE001
                average.set_exception(error)  # type: ignore[arg-type]

        if last is None or last.done():
            begin(None)
        else:
            last.add_done_callback(begin)
        last = average
        return average

    return in_turn


def init_group(name: str, world: World, store: Store, timeout: float) -> None:
    """Create the default process group; `timeout`, in seconds, bounds its calls and those of later groups."""
    bound_new_groups(timeout)
    dist.init_process_group(name, store=store, rank=world.rank, world_size=world.size)


def bound_new_groups(seconds: float | None) -> None:
    """Set the default timeout of new process groups; None restores torch's default of 30 minutes."""
    limit = constants.default_pg_timeout if seconds is None else timedelta(seconds=seconds)
    distributed_c10d.default_pg_timeout = limit


@dataclass(frozen=True)
class GroupRanks:
    """A process group: its name in messages (empty: the default group), and its ranks in the job (None: all)."""

    name: str = ""
    ranks: tuple[int, ...] | None = None


def groups() -> dict[str, GroupRanks]:
    """Return the process groups of this rank by torch's names for them; any thread may call this.

    Groups of background work are left out, because long waits in them are normal.
    """
    known: dict[str, GroupRanks] = {}
    for group, name in list(distributed_c10d._world.pg_names.items()):
        if group is distributed_c10d.GroupMember.WORLD:
            known[name] = GroupRanks()
            continue
        if group.group_desc == BACKGROUND:
            continue
        ranks = distributed_c10d._world.pg_group_ranks.get(group, {})
        label = name if group.group_desc in ("", "undefined") else f"{group.group_desc}:{name}"
        known[name] = GroupRanks(label, tuple(sorted(ranks, key=ranks.__getitem__)))
    return known


def _no_gpu(device: Any) -> None:
    remedy = "give the script's option for CPUs, such as --device cpu, or leave the call out"
    raise UserError(f"the script calls torch.cuda.set_device({device}), and torch finds no GPU; {remedy}")


PATCHES = (
    Patch("torch.distributed.distributed_c10d:default_pg_timeout", "groups of a script get the job's timeout"),
    Patch(
        "torch.cuda:set_device",
        "scripts for GPUs call it where there is none, and torch's error is about a missing attribute",
        lambda original, _: original if torch.cuda.is_available() else _no_gpu,
        "device",
    ),
)


def _prefer_cpu(changes: Changes, module: ModuleType) -> None:
    """Patch `module`, of accelerate or transformers, as if CPU_ONLY had been set when it was imported."""
    for name, value in {"USE_TORCH_XLA": "0", "_torch_xla_available": False}.items():
        if hasattr(module, name):
            changes.attribute(module, name, value)
    forget = module.is_torch_xla_available.cache_clear
    forget()
    changes.then(forget)
