"""Allreduces that cross the network in another format: `compressed.py bf16|int8`."""

import os
import sys
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from programs import leave, run_checks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import cpudist
from cpudist import job
from cpudist.backends import auto_compression
from cpudist.backends.ccl import extension
from cpudist.backends.ccl.ccl_group import WireOptions

wire = sys.argv[1]
world = cpudist.init("ccl", timeout=60)
hosts = int(os.environ["CPUDIST_TEST_HOSTS"])
running = job.require()
running.world = replace(world, node_rank=world.rank * hosts // world.size, node_count=hosts)
running.ddp_models.world = running.world
group = dist.new_group(pg_options=WireOptions(wire))
# The relative error of one conversion, of the largest magnitude that the values are converted with.
ONE = {"bf16": 2**-8, "int8": 0.5 / 127 * 1.0001}[wire]
SIZES = (16_384, 16_385, 100_003, 700_000, 3_000_001)


def values(count: int, seed: int) -> list[torch.Tensor]:
    """Return what each rank contributes; every rank makes all of them."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator) for _ in range(world.size)]


def same_on_all_ranks(tensor: torch.Tensor) -> bool:
    found = [torch.empty_like(tensor) for _ in range(world.size)]
    dist.all_gather(found, tensor)
    return all(torch.equal(found[0].view(torch.int32), other.view(torch.int32)) for other in found)


def bound(inputs: list[torch.Tensor], average: bool) -> float:
    """Return the largest error that the format allows: of every contribution, and of the sum."""
    each = sum(float(one.abs().max()) for one in inputs) * ONE
    most = float(sum(inputs).abs().max()) + each
    return (each + most * ONE) * 1.001 / (world.size if average else 1)


def check_sums_and_averages() -> None:
    for count in SIZES:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            inputs = values(count, count)
            average = op == dist.ReduceOp.AVG
            expected = torch.stack(inputs).double().sum(0) / (world.size if average else 1)
            found = inputs[world.rank].clone()
            dist.all_reduce(found, op=op, group=group)
            error = float((found.double() - expected).abs().max())
            assert 0 < error <= bound(inputs, average), (count, op, error, bound(inputs, average))
            assert same_on_all_ranks(found), (count, op)


def check_many_in_flight_among_other_calls() -> None:
    """Check calls in flight together, some of which are not converted: short ones, other types, other reductions."""
    torch.manual_seed(world.rank)
    tensors = [torch.randn(200_000 + i) for i in range(6)]
    others = [torch.full((20_000,), float(world.rank)).double() for _ in tensors]
    small = [torch.full((100,), 0.1 + world.rank) for _ in tensors]
    works = []
    for tensor, other, few in zip(tensors, others, small, strict=True):
        works.append(dist.all_reduce(tensor, group=group, async_op=True))
        works.append(dist.all_reduce(other, group=group, async_op=True))
        works.append(dist.all_reduce(few, op=dist.ReduceOp.MAX, group=group, async_op=True))
    for work in works:
        work.wait()
    assert all(same_on_all_ranks(tensor) for tensor in tensors)
    assert all(float(other[-1]) == sum(range(world.size)) for other in others)
    assert all(torch.equal(few, torch.full((100,), 0.1 + world.size - 1)) for few in small)


def check_what_is_no_number_arrives() -> None:
    for bad in (float("inf"), float("nan")):
        tensor = torch.ones(50_000)
        tensor[40_000 + world.rank] = bad
        dist.all_reduce(tensor, group=group)
        assert not tensor[40_000 : 40_000 + world.size].isfinite().any(), bad
        assert tensor[:39_000].isfinite().all()
        assert same_on_all_ranks(tensor)


def check_residual() -> None:
    """Over many steps the mean of the gradients approaches the exact one: what one step loses, the next one adds."""
    gradients = values(90_000, 5)
    expected = torch.stack(gradients).double().mean(0)
    running.ddp_models.compression = wire
    model = torch.nn.Linear(300, 300, bias=False)
    wrapped, total, errors = DistributedDataParallel(model), torch.zeros_like(expected), []
    for step in range(-1, 33):  # the first two are exact
        model.zero_grad()
        (wrapped(torch.eye(300)) * gradients[world.rank].view(300, 300).T).sum().backward()
        assert same_on_all_ranks(model.weight.grad)
        if step > 0:
            total += model.weight.grad.flatten()
            errors.append(float((total / step - expected).abs().max()))
    assert wire == "bf16" or errors[31] < errors[0] / 12, errors


def trained(compress: str, group: Any = None) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    running.ddp_models.compression = compress
    wrapped = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(world.rank)
    for _ in range(8):
        batch = torch.randn(16, 300, generator=generator)
        if world.rank == 0:
            with wrapped.no_sync():  # averages nothing, so the choice of "auto" may not count it
                wrapped(batch).square().mean().backward()
        (wrapped(batch) - batch[:, :1]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def check_ddp() -> None:
    """A model trains as it does without compression, up to a little, and stays the same on all ranks."""
    exact, compressed = trained("none"), trained(wire)
    before = torch.nn.utils.parameters_to_vector(exact.parameters()).detach()
    after = torch.nn.utils.parameters_to_vector(compressed.parameters()).detach()
    assert same_on_all_ranks(after)
    assert 0 < float((before - after).norm()) < 0.02 * float(before.norm())
    for auto_compression._SHARE, chosen in ((0.0, "bf16"), (float("inf"), "none")) if wire == "bf16" else ():
        assert same_on_all_ranks(torch.nn.utils.parameters_to_vector(trained("auto").parameters()).detach())
        assert running.record.compression == chosen
    if wire == "bf16":  # the other ranks take no part
        group = dist.new_group([0, 1])
        if world.rank < 2:
            trained("auto", group)
        dist.barrier()


def check_the_wait_for_a_late_rank_is_counted() -> None:
    """The engine does not count it, because DDP waits for futures."""
    is_late = world.rank == world.size - 1
    backend: Any = running.backend
    backend._across_hosts = True
    model = cpudist.wrap(torch.nn.Linear(512, 512), compress=wire)
    for step in range(3):
        before = backend.communication_seconds()
        if is_late:
            time.sleep(0.3)
        model(torch.ones(4, 512)).sum().backward()
        waited = backend.communication_seconds() - before
        assert step == 0 or is_late or waited > 0.2, waited  # DDP notes no times of the first step
        dist.barrier()


def trained_in_shares(compress: str, shares: tuple[float, ...]) -> torch.Tensor:
    """Return the parameters after 14 steps; PowerSGD begins after the tenth."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
    running.balance.chosen = shares
    wrapped, optimizer = cpudist.wrap(model, compress=compress), torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(14 * 6 * world.size, 300)
    for batch in DataLoader(data, batch_sampler=cpudist.shares(data, 6)):
        (wrapped(batch) - batch[:, :1]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def check_unequal_shares() -> None:
    """They train the model of equal shares, up to the format's rounding; PowerSGD's factors are those of the mean."""
    equal, unequal = (1.0,) * world.size, tuple(4.0 - rank for rank in range(world.size))
    for scheme, reference in ((wire, "none"), ("powersgd:2", "powersgd:2")):
        expected, found = trained_in_shares(reference, equal), trained_in_shares(scheme, unequal)
        assert same_on_all_ranks(found)
        assert float((found - expected).norm()) < 2e-3 * float(expected.norm()), scheme


run_checks(globals())
given, sent = extension.load().converted()
assert given / sent > {"bf16": 1.99, "int8": 3.9}[wire], (given, sent)
dist.destroy_process_group(group)
leave(f", {wire}")
