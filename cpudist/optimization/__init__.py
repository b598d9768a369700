"""Makes a model and its optimizer faster on this CPU: by Intel's extension where it fits, otherwise by PyTorch's own
means.

`optimize` takes the fastest that was measured. One module per means: ipex.py, master_weights.py and precision.py
(bfloat16), products.py (bfloat16 on CPUs without it), dropout.py (on all threads), native.py (fused optimizers, memory
format, freed memory). choice.py applies the means, and prints them in one line.

It must not import launchers, transformers, programs or command lines.
"""

from __future__ import annotations

from typing import Any

import torch

from cpudist import job
from cpudist.errors import UserError
from cpudist.optimization import choice, master_weights, precision

__all__ = ["optimize", "scaler"]


def optimize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    ipex: bool | None = None,
    autocast: bool = False,
    keep_memory: bool = True,
    parallel_dropout: bool = True,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Make training of `model` with `optimizer` fast on this CPU. Call it before `cpudist.wrap`.

    Both are changed in place. Inputs and outputs of the model stay float32, as do checkpoints. The defaults are the
    fastest measured choices (docs/performance.md). Rank 0 prints the choice in one line.

    Args:
        model: the model, on the CPU.
        optimizer: its optimizer; None for a model that is not trained.
        dtype: the type to compute in: ``torch.float32``; ``torch.bfloat16``, with bfloat16 parameters and float32
            master weights, or float32 for convolutions on CPUs where they would be many times slower;
            ``torch.float16``, with autocast, on CPUs that have it (scale the loss, and give the scaler to
            `cpudist.step`).
        ipex: Intel's extension for PyTorch; None uses it where it is installed and made for this torch. It has no
            effect on other backends than ccl and gloo. Once it is loaded, models of `torch.compile` run eagerly, to the
            end of this process: compiled ones would get wrong gradients.
        autocast: for bfloat16, keep float32 parameters and use autocast: slower, but it works for every model and
            optimizer, also for those that mix number formats or call a closure, and averages of the parameters (EMA)
            are in float32. Otherwise average the values of `state_dict`.
        keep_memory: keep freed memory in the process, for the next step. The peak of memory grows by up to half; use
            False where memory is scarce.
        parallel_dropout: draw dropout, attention's too, on all threads, in this process until the job ends. For a seed
            the masks are others than PyTorch's, and the same on any number of threads; False leaves PyTorch's.

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
        (torch.bfloat16, torch.float32)
    """
    choice.check(dtype)
    because = []
    if dtype is torch.bfloat16 and choice.on_cpu() and precision.slow_in_bf16(model):
        dtype = torch.float32
        because.append(precision.IN_FLOAT32)
    reason = choice.why_not_ipex() if ipex is not False else "Intel's extension is not asked for"
    if ipex and reason and choice.on_cpu():
        raise UserError(f"{reason}; leave ipex out to go on without it")
    because += [reason] if reason else []
    chosen = choice.apply_kernels(model, optimizer, reason, keep_memory, parallel_dropout) + choice.multiply(dtype)
    if dtype is torch.bfloat16 and not autocast and choice.on_cpu():
        master_weights.keep(model, optimizer)
        precision.compute_in(model, dtype)
        chosen.append(choice.MASTER_WEIGHTS)
    elif dtype is not torch.float32:
        precision.compute_under(model, torch.autocast(choice.device_type(), dtype=dtype))
        chosen.append(choice.autocast_in(dtype))
    choice.note(chosen)
    choice.announce(chosen, dtype, reason, because=f" ({'; '.join(because)})" if because else "")
    return model, optimizer


def scaler() -> Any:
    """Return the GradScaler of a training loop: ``scaler.scale(loss).backward(); cpudist.step(optimizer, scaler)``.

    After `optimize` to float16 it scales the loss. Otherwise it is not enabled, and passes everything through, on any
    backend. Call it after `optimize`.

    Raises:
        UserError: there is no running job.

    Examples:
        >>> model = cpudist.wrap(torch.nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> scaler = cpudist.scaler()
        >>> scaler.scale(model(torch.ones(4, 8)).sum()).backward()
        >>> cpudist.step(optimizer, scaler)
    """
    scales = choice.autocast_in(torch.float16) in job.require().record.optimizations
    return torch.amp.GradScaler("cpu", enabled=scales)
