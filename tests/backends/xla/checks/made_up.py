"""What is there for TPUs and GPUs, as far as CPUs can try it: devices are made up, the runtime's interface is not."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch_xla.distributed import spmd

import cpudist
from cpudist import job
from cpudist.backends.xla import patches, xla_group
from cpudist.backends.xla.program import Program
from cpudist.errors import UserError
from cpudist.patching.undo import Changes
from cpudist.world import World


def _leave_host() -> None:
    """Let tensors of the device go to the runtime's own group."""
    Program.through_host = property(lambda self: False)


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except UserError as error:
        print(f"refused: {error}\n", end="", flush=True)


class DeviceOnly(xla_group.ThroughHost):
    """A group of devices as the runtime's: it has messages for their tensors, and refuses those of the CPU."""

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def on_device(*args: Any) -> Any:
            if any(tensor.device.type == "cpu" for tensor in xla_group._tensors(args)):
                raise NotImplementedError(f"{name} of a CPU tensor on a group of devices")
            return call(*args)

        return on_device


def connect(order: int = 1) -> None:
    """Let the runtime answer as where it connects the devices of both ranks; with -1 it numbers them backwards."""
    rank = int(os.environ["RANK"] if "RANK" in os.environ else os.environ["PMI_RANK"])
    _leave_host()
    xla_group.runtime_side = lambda host, options: DeviceOnly(host)
    number = rank if order == 1 else 1 - rank
    patches.make_one_world(World(number, 2, number, 2, 0, 1, "made up"), Changes())


def alone() -> None:
    """The runtime's own process group, as where it connects the devices, beside one for the CPU."""
    _leave_host()
    world = cpudist.init("xla")
    device = dist.group.WORLD.device
    print(dist.get_backend(), type(device).__name__, dist.new_group.__module__)
    model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4).to(world.device)).square().mean().backward()
    before = next(model.parameters()).detach().cpu()
    cpudist.step(optimizer)
    print("moved:", not torch.equal(before, next(model.parameters()).detach().cpu()), job.require().backend.transport())
    cpudist.shutdown()


def ranks() -> None:
    """Each of several ranks has a device, and the runtime, left alone on CPUs, does not connect them, or backwards."""
    for start in (_leave_host, lambda: connect(-1)):
        start()
        refused(partial(cpudist.init, "xla", timeout=60))


def marked() -> None:
    """A script may not place a parameter that the mesh has placed."""
    world = cpudist.init("xla", mesh="fsdp=2")
    model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
    refused(partial(spmd.mark_sharding, model.weight, spmd.get_global_mesh(), (None, None)))
    cpudist.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
