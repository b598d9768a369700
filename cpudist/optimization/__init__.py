"""Makes a model and its optimizer faster on this CPU: by Intel's extension where it fits, otherwise by PyTorch's own
means. The model stays the user's: its parameters keep their type, so copies, other optimizers and states are as before.

One module per means: ipex.py, precision.py (bfloat16 and float16 by autocast), dropout.py (on all threads), native.py
(fused optimizers, memory format, freed memory). kernels.py applies those that fit; applied.py keeps what was applied,
and prints it in one line.

It must not import launchers, transformers, programs or command lines.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cpudist import job
from cpudist.errors import UserError
from cpudist.optimization import applied, kernels, precision

__all__ = ["optimize", "scaler"]


def optimize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    ipex: bool | None = None,
    keep_memory: bool = True,
    parallel_dropout: bool = True,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Make training of `model` with `optimizer` fast on this CPU. Call it before `cpudist.wrap`.

    Both are changed in place. Parameters, gradients and checkpoints keep their type; outputs in bfloat16 or float16 are
    converted to float32. The defaults are the fastest measured choices (docs/performance.md). Rank 0 prints the choice
    in one line.

    Args:
        model: the model, on the CPU.
        optimizer: its optimizer; None for a model that is not trained.
        dtype: the type that the model's forward pass computes in: ``torch.float32``, or by autocast ``torch.bfloat16``
            (in float32 on CPUs where bfloat16 would be many times slower) or ``torch.float16``, on CPUs that have it
            (scale the loss, and give the scaler to `cpudist.step`).
        ipex: Intel's extension for PyTorch; None uses it where it is installed and made for this torch. It has no
            effect on other backends than ccl and gloo. Once it is loaded, models of `torch.compile` run eagerly, to the
            end of this process: compiled ones would get wrong gradients.
        keep_memory: keep freed memory in the process, for the next step. The peak of memory grows by up to half; use
            False where memory is scarce.
        parallel_dropout: draw the model's dropout, attention's too, on all threads where that is faster. For a seed the
            masks are others than PyTorch's, and the same on any number of threads; False leaves PyTorch's.

    Returns:
        The model and the optimizer.

    Raises:
        UserError: `dtype` cannot be computed in on this CPU, the model is wrapped in DDP already, or Intel's extension
            is asked for by ``ipex=True`` and cannot be used.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
        >>> model.weight.dtype, model(torch.ones(4, 8)).dtype
        (torch.float32, torch.float32)
    """
    precision.check(dtype)
    no_ipex = kernels.why_not_ipex() if ipex is not False else "Intel's extension is not asked for"
    if ipex and no_ipex and precision.device_type() == "cpu":
        raise UserError(f"{no_ipex}; leave ipex out to go on without it")
    if isinstance(model, DistributedDataParallel):
        raise UserError("the model is wrapped in DDP already; call cpudist.optimize() before cpudist.wrap()")
    computed = precision.fitting(dtype)
    because = ([precision.IN_FLOAT32] if computed is not dtype else []) + ([no_ipex] if no_ipex else [])
    chosen = kernels.apply(model, optimizer, no_ipex, keep_memory, parallel_dropout) + kernels.autocast_in(computed)
    precision.compute_in(model, computed)
    applied.note(chosen, computed)
    applied.announce(chosen, computed, no_ipex, because=f" ({'; '.join(because)})" if because else "")
    return model, optimizer


def scaler() -> Any:
    """Return the GradScaler of a training loop: ``scaler.scale(loss).backward(); cpudist.step(optimizer, scaler)``.

    After `optimize` of any model of this job to float16 it scales the loss. Otherwise it is not enabled, and passes
    everything through, on any backend. Call it after `optimize`.

    Raises:
        UserError: there is no running job.

    Examples:
        >>> model = cpudist.wrap(torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scaler = cpudist.scaler()
        >>> scaler.scale(model(torch.ones(4, 8)).sum()).backward()
        >>> cpudist.step(optimizer, scaler)
    """
    job.require()
    return torch.amp.GradScaler("cpu", enabled=applied.needs_scaler())
