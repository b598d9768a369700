"""What is there for TPUs and GPUs, as far as CPUs can try it: devices are made up, the runtime's interface is not."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.distributed import spmd

import cpudist
from cpudist import job
from cpudist.backends.xla import mesh, patches, pjrt, xla_group
from cpudist.backends.xla.program import Program
from cpudist.changes import Changes
from cpudist.errors import UserError
from cpudist.world import World


def _leave_host() -> None:
    """Let tensors of the device go to the runtime's own group."""
    Program.through_host = property(lambda self: False)


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except UserError as error:
        print(f"refused: {error}\n", end="", flush=True)


def as_a_tpu(slices: int, x: int, y: int) -> None:
    """Let the runtime say that it has `slices` slices of x times y chips, numbered along x first."""
    chips = [(slice_, column, row) for slice_ in range(slices) for row in range(y) for column in range(x)]
    attributes = [
        {"name": f"TPU:{number}", "coords": [column, row, 0], **({"slice_index": slice_} if slices > 1 else {})}
        for number, (slice_, column, row) in enumerate(chips)
    ]
    runtime.global_runtime_device_attributes = lambda: list(attributes)
    runtime.global_runtime_device_count = lambda: len(chips)
    xla_model.xla_device_hw = lambda device: "TPU"


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


def hosts() -> None:
    """Of several hosts, each feeds its own part of a batch."""
    world = cpudist.init("xla", mesh="fsdp=2")
    model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
    refused(partial(spmd.mark_sharding, model.weight, spmd.get_global_mesh(), (None, None)))
    batch = torch.arange(16.0).reshape(4, 4)
    whole = model(batch.to(world.device)).cpu()
    with patch.object(runtime, "process_count", lambda: 2):
        ((fed, labels),) = cpudist.batches([(batch, torch.arange(4))])
        print("labels:", labels.tolist())
        print("fed in parts:", torch.allclose(model(fed).cpu(), whole))
        refused(partial(model, batch.to(world.device)))
    cpudist.shutdown()


def hybrid() -> None:
    """--mesh on a TPU is the runtime's own HybridMesh, which is refused over several slices."""
    as_a_tpu(1, 2, 4)
    axes = mesh.fit(mesh.parse("data=-1,model=2"), 8)
    grid = mesh.make(axes, "TPU").get_logical_mesh()
    own = spmd.HybridMesh(ici_mesh_shape=(4, 2), axis_names=("data", "model"))
    print("the same:", (grid == own.get_logical_mesh()).all(), own.shape() == mesh.make(axes, "TPU").shape())
    as_a_tpu(2, 2, 4)
    refused(partial(mesh.make, mesh.fit(mesh.parse("data=16"), 16), "TPU"))


def pod() -> None:
    """The workers of a pod, started alike by nobody whom cpudist knows; WORKER is what the TPU's metadata would say."""
    runtime.use_spmd()
    runtime.process_index()  # the runtime has started, on a CPU, and stays there whatever it is called
    os.environ.pop("PJRT_DEVICE")
    as_a_tpu(1, 2, 1)
    runtime.process_count = lambda: 2
    runtime.process_index = lambda: int(os.environ["WORKER"])
    runtime.get_master_ip = lambda: "127.0.0.1"
    pjrt.glob = lambda pattern: ["/dev/accel0"] if "accel" in pattern else []
    pjrt.lacks = lambda kind: None
    world = cpudist.init("xla", mesh="data=-1", timeout=60)
    met = [None, None]
    dist.all_gather_object(met, os.environ["WORKER"])
    print(f"rank {world.rank} of {world.size}, met {met}, {job.require().backend.details()['mesh']}")
    cpudist.shutdown()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
