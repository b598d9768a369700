"""A program for torch_xla alone, as its documentation writes them, without cpudist, in one WAY after the other."""

import resource
import sys

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch.nn.parallel import DistributedDataParallel


def train(index, steps, way):
    device = torch_xla.device()
    if way == "ddp":
        dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(xr.global_ordinal())
    model = torch.nn.Linear(8, 4).to(device)
    if way == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        xm.broadcast_master_param(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(16 * steps, 8, generator=torch.Generator().manual_seed(0))
    mine = inputs[xr.global_ordinal() :: xr.world_size()]
    batches = [(batch, batch[:, :4].argmax(1)) for batch in mine.split(16 // xr.world_size())]

    def step(batch, target):
        with xp.Trace("step"):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch), target).backward()
            if way == "ddp":
                optimizer.step()
            else:
                xm.optimizer_step(optimizer)

    if way == "compiled":
        step = torch_xla.compile(step)
    for batch, target in pl.MpDeviceLoader(batches, device):
        step(batch, target)
    weight = next(model.parameters()).detach()
    everyones = xm.all_gather(weight.reshape(1, -1))
    assert everyones.shape == (xr.world_size(), weight.numel())
    assert all(torch.equal(row, everyones[0]) for row in everyones.cpu()), "the ranks have trained apart"
    met = xm.mesh_reduce("ranks", xr.global_ordinal(), sorted)
    assert met == list(range(xr.world_size())), met
    if xm.is_master_ordinal(local=False):
        print(f"{xr.world_size()} ranks, weights {weight.double().sum().item():.6f}", flush=True)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ddp_memory(layers=12, width=1024):
    """Print by how much the process grows in DDP over many parameters, in models."""
    dist.init_process_group("xla", init_method="xla://")
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)]).to("xla")
    model = DistributedDataParallel(model, bucket_cap_mb=200)  # one bucket
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch_xla.sync(wait=True)
    before = peak()
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)  # writes into the views
        model(torch.ones(2, width, device="xla")).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and so does this
        optimizer.step()
        torch_xla.sync(wait=True)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    print(f"grew by {(peak() - before) / size:.1f} models", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["ddp_memory"]:
        ddp_memory()
        sys.exit()
    for word in sys.argv[1:]:
        if word == "spawn":
            try:
                xr.use_spmd()
            except Exception as error:  # noqa: BLE001 - the program does not know cpudist
                print(f"refused: {error}", flush=True)
            xmp.spawn(train, args=(6, word), nprocs=3)
        torch_xla.launch(train, args=(6, word))
