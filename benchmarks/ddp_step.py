"""Compare a training step under DistributedDataParallel on ccl and on gloo.

    mpirun -n 2 python benchmarks/ddp_step.py [--backend xla] [--shape SAMPLES TOKENS] [--quick]

A step is forward, backward and optimizer of a BERT with 24 million parameters, 2 x 64 random tokens per rank (--shape).
Prints, for float32 and bfloat16, its time with several kinds of buckets and without DDP, where a hook averages each
gradient in place, and as multiples of a step without communication. With --backend xla the device computes, in the
buckets that `cpudist.wrap` chooses: most of the time is compiling.
"""

import argparse
import gc
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from comparison import compare
from torch.nn.parallel import DistributedDataParallel

import cpudist
from cpudist import job
from cpudist.bench.between_hosts import SMALL_SHAPE, bert, random_tokens, train_on
from cpudist.bench.timing import Candidate, Turns, both_groups, timed
from cpudist.optimization import precision

Buckets = tuple[int, bool]  # MB, and whether gradients are views of the buckets
BUCKETS: list[Buckets] = [(mb, views) for views in (False, True) for mb in (1, 25, 100)]
# Two steps of warm-up: DDP settles its buckets after its first step.
FULL, QUICK = Turns(rounds=5, calls=3, warm_up=2), Turns(rounds=2, calls=1, warm_up=2)


def main() -> None:
    """Compare all candidates in float32, then in bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="ccl")
    parser.add_argument("--shape", type=int, nargs=2, default=SMALL_SHAPE, metavar=("SAMPLES", "TOKENS"))
    parser.add_argument("--quick", action="store_true", help="a smoke test, whose figures mean little")
    options = parser.parse_args()
    world = cpudist.init(options.backend)
    groups = both_groups(world.backend)
    choices = BUCKETS[::-3] if options.quick else BUCKETS
    if world.device.type != "cpu":  # gloo has no tensors of the device, and each kind of buckets is compiled anew
        groups = {world.backend: groups[world.backend]}
        choices = [(job.require().backend.ddp_options()["bucket_cap_mb"], True)]
    model = bert(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=world.device.type == "cpu")
    tokens = random_tokens(world.rank, tuple(options.shape)).to(world.device)

    def candidate(dtype: torch.dtype, group: dist.ProcessGroup, buckets: Buckets, alone: bool = False) -> Candidate:
        """Return a candidate that reduces gradients by `group` in these buckets, or not at all if `alone`."""

        def measure(calls: int) -> list[float]:
            gc.collect()  # frees the DDP of the last turn, whose hooks on the model form reference cycles
            mb, views = buckets
            ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=mb, gradient_as_bucket_view=views)
            with ddp.no_sync() if alone else nullcontext():
                return timed(partial(train_on, tokens, ddp, optimizer, dtype))(calls)

        return measure

    def averaged_in_place(dtype: torch.dtype) -> Candidate:
        """Return a candidate without DDP's buckets: each gradient is averaged when it is complete."""

        def average(parameter: torch.Tensor) -> None:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, groups[world.backend])

        def measure(calls: int) -> list[float]:
            hooks = [one.register_post_accumulate_grad_hook(average) for one in model.parameters()]  # type: ignore[no-untyped-call]
            try:
                return timed(partial(train_on, tokens, model, optimizer, dtype))(calls)
            finally:
                for hook in hooks:
                    hook.remove()

        return measure

    for dtype in (torch.float32, torch.bfloat16):
        candidates = {"no communication": candidate(dtype, groups[world.backend], choices[0], alone=True)}
        for mb, views in choices:
            for name, group in groups.items():
                candidates[f"{name}, {mb} MB{', views' if views else ''}"] = candidate(dtype, group, (mb, views))
        if world.backend == "ccl":  # gloo has no AVG
            candidates["ccl, each gradient in place, no DDP"] = averaged_in_place(dtype)
        compare(precision.name(dtype), candidates, QUICK if options.quick else FULL)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
