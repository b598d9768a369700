"""Make a model and its optimizer faster on this CPU, by kernels of PyTorch, cpudist and, if it fits, Intel's extension.
Parameters keep their type, so copies, other optimizers and saved states work as before.

Each optimization has a module: ipex.py, precision.py (bfloat16 and float16 by autocast), operators.py (attention,
dropout and others), native.py (fused optimizers, freed memory), and padding.py (trimmed batches). kernels.py applies
those of the first four that fit, and records and prints them.

This package must not import launchers, transformers, programs or command lines.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from cpudist import job
from cpudist.errors import UserError, expect
from cpudist.optimization import kernels, precision

__all__ = ["optimize", "scaler"]


def optimize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    ipex: bool | None = None,
    keep_memory: bool = True,
    own_operators: bool = True,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Make training of `model` with `optimizer` fast on this CPU. Call it before `cpudist.wrap`.

    Both are changed in place. Parameters, gradients and checkpoints keep their type; outputs in bfloat16 or float16 are
    converted to float32. The defaults are the fastest measured choices (docs/performance.md). Rank 0 prints the choice
    in one line.

    Args:
        model: the model, on the CPU.
        optimizer: its optimizer; None for a model that is not trained.
        dtype: the type of the forward pass; ``torch.bfloat16`` and ``torch.float16`` use autocast. float32 replaces
            bfloat16 on CPUs where bfloat16 would be many times slower. float16 needs a CPU with float16 arithmetic;
            scale the loss (`scaler`), and give the scaler to `cpudist.step`.
        ipex: use Intel's extension for PyTorch; None: use it if it is installed for this torch. It has no effect on
            other backends than ccl and gloo. Once it is loaded, models of `torch.compile` run eagerly until this
            process ends, because compiled models would get wrong gradients.
        keep_memory: keep freed memory in the process for the next step. Peak memory grows by up to half; use False if
            memory is scarce.
        own_operators: use cpudist's operators where they are faster than PyTorch's: attention in one pass, dropout on
            all threads, and the backward pass of linear layers and of cross entropy. A seed gives other dropout masks
            than in PyTorch, the same on any number of threads. False keeps PyTorch's operators.

    Returns:
        The model and the optimizer.

    Raises:
        UserError: an argument is of a wrong type, this CPU cannot compute in `dtype`, the model is wrapped in DDP
            already, or Intel's extension cannot be used with ``ipex=True``.

    Examples:
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
        >>> model.weight.dtype, model(torch.ones(4, 8)).dtype
        (torch.float32, torch.float32)
    """
    expect("optimize's model", model, torch.nn.Module)
    if optimizer is not None:
        expect("optimize's optimizer", optimizer, torch.optim.Optimizer)
    precision.check(dtype)
    no_ipex = kernels.why_not_ipex() if ipex is not False else "Intel's extension is not asked for"
    if ipex and no_ipex and precision.device_type() == "cpu":
        raise UserError(f"{no_ipex}; leave ipex out to go on without it")
    if isinstance(model, DistributedDataParallel):
        raise UserError("the model is wrapped in DDP already; call cpudist.optimize() before cpudist.wrap()")
    computed = precision.fitting(dtype)
    precision.compute_in(
        model, torch.float32
    )  # first remove the autocast of an earlier call: it wraps the forward pass that `apply` replaces
    because = ([precision.IN_FLOAT32] if computed is not dtype else []) + ([no_ipex] if no_ipex else [])
    chosen = kernels.note(kernels.apply(model, optimizer, no_ipex, keep_memory, own_operators), computed)
    precision.compute_in(model, computed)
    kernels.announce(chosen, computed, no_ipex, because=f" ({'; '.join(because)})" if because else "")
    return model, optimizer


def scaler() -> Any:
    """Return the GradScaler of a training loop: ``scaler.scale(loss).backward(); cpudist.step(optimizer, scaler)``.

    Call this after `optimize`. The scaler scales the loss if `optimize` has set a model of this job to float16.
    Otherwise the scaler is disabled and passes all values through, on any backend.

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
    return torch.amp.GradScaler("cpu", enabled=torch.float16 in kernels.dtypes)
