"""Choose none or bf16 for `--compress auto` by measuring the first steps."""

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.parallel import DistributedDataParallel

_WARM_UP = 2  # Steps before the measured ones; DDP rebuilds its buckets after the first step.
_MEASURED = 3
_SAMPLE = 4 << 20  # Largest timed sum, in float32 values; the time of a larger sum is extrapolated.
_SHARE = 0.1  # Gradients are compressed if communication takes more than this share of a step.


def choose_later(model: torch.nn.Module, chosen: Callable[[str, str], None]) -> None:
    """Measure the first steps of a model, then call `chosen` with "none" or "bf16" and the reason, on all ranks.

    `chosen` is called at the end of a backward pass in which DDP has averaged the gradients. All ranks make equally
    many such backward passes, so `chosen` may communicate; it may also register a communication hook.

    Args:
        model: the model. Without DDP, with another communication hook, or without float32 gradients, `chosen` is called
            at once with "none" and an empty reason.
        chosen: takes the scheme and the reason.
    """
    if not isinstance(model, DistributedDataParallel) or model._comm_hooks:
        chosen("none", "")
        return
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in parameters if parameter.dtype is torch.float32)
    ends: list[float] = []
    queue: Any = Variable._execution_engine.queue_callback

    def in_backward(_: torch.Tensor) -> None:
        if model.require_backward_grad_sync:
            queue(lambda: queue(after_average))  # the outer callback runs before DDP's, the inner one after it

    def after_average() -> None:
        ends.append(time.perf_counter())
        if len(ends) == _WARM_UP + _MEASURED:
            handle.remove()
            step = statistics.median(b - a for a, b in itertools.pairwise(ends[_WARM_UP - 1 :]))
            chosen(*_choice(*_largest(_seconds_of_sum(model.process_group, count), step, group=model.process_group)))

    if count:
        handle = register_multi_grad_hook(parameters, in_backward, mode="any")
    else:
        chosen("none", "")


def _choice(seconds: float, step: float) -> tuple[str, str]:
    """Return the scheme and the reason, given the seconds of uncompressed communication and of a whole step."""
    found = f"the gradients cross the network in {seconds:.3g} s, a step takes {step:.3g} s"
    if seconds <= _SHARE * step:
        return "none", found
    more = "; int8 or powersgd send less" if seconds / 2 > _SHARE * step else ""
    return "bf16", f"{found}{more}"


def _seconds_of_sum(group: Any, count: int) -> float:
    """Return the seconds that an all-reduce of `count` float32 values takes; all ranks of `group` call it."""
    sample = torch.zeros(min(count, _SAMPLE))
    seconds = []
    for _ in range(2):
        dist.all_reduce(torch.zeros(1), group=group)  # a barrier: the wait for a late rank is not measured
        began = time.perf_counter()
        dist.all_reduce(sample, group=group)
        seconds.append(time.perf_counter() - began)
    return min(seconds) * count / sample.numel()


def _largest(*values: float, group: Any) -> list[float]:
    """Return the maximum of each value over all ranks of `group`; all of them call it."""
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return list(map(float, found))
