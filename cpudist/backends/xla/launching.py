"""What scripts call to get all devices to work, where a launcher or --mesh has seen to that already.

`torch_xla.launch` and `xmp.spawn` start a process for each device, `xr.use_spmd` makes one program of all. In a job,
the first call their function in place, and whatever would leave devices idle, or train them apart, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch_xla
import torch_xla.distributed.xla_multiprocessing as multiprocessing
from torch_xla import runtime

from cpudist.errors import UserError

if TYPE_CHECKING:
    from cpudist.changes import Changes
    from cpudist.world import World


def run_in_place(world: World, changes: Changes, mesh: bool) -> None:
    """Let `torch_xla.launch` and `xmp.spawn` call their function here: the launcher has started the ranks already.

    Args:
        world: this rank's place.
        changes: what the job takes back.
        mesh: whether --mesh has made one program of the job; they are refused then, as by the runtime itself.
    """

    def launch(
        fn: Callable[..., Any], args: Any = (), start_method: str = "spawn", debug_single_process: bool = False
    ) -> None:
        _check(mesh, alone=debug_single_process)
        fn(world.rank, *args)

    def spawn(
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int | None = None,
        join: bool = True,
        daemon: bool = False,
        start_method: str = "spawn",
    ) -> None:
        _check(mesh, alone=nprocs == 1)
        fn(world.rank, *args)

    changes.attribute(torch_xla, "launch", launch)
    changes.attribute(multiprocessing, "spawn", spawn)


def one_program_or_none(world: World, changes: Changes, mesh: bool) -> None:
    """Let `xr.use_spmd` do nothing under --mesh, which has done it, and refuse it beside a process group."""
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


def _check(mesh: bool, alone: bool) -> None:
    """Raise `UserError` where a function that is called once would not use every device."""
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
