"""Chooses what makes training fastest here, applies it, and says in one line what it chose and why."""

from __future__ import annotations

import os
import sys

import torch

from cpudist.errors import UserError
from cpudist.launchers import launched_rank
from cpudist.optimization import ipex as intel
from cpudist.optimization import master_weights, memory, native, precision

_AUTOCAST = "bfloat16 autocast"
_MASTER_WEIGHTS = "bfloat16 parameters with float32 master weights"

_choices: list[str] = []


def optimize(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    ipex: bool | None = None,
    autocast: bool = False,
    compile: bool = False,
    keep_memory: bool = True,
) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
    """Make training `model` with `optimizer` fast on this CPU. Call it before `cpudist.wrap`.

    Both are changed in place. Inputs and outputs of the model stay float32, as do checkpoints. The defaults are the
    fastest of what has been measured (docs/performance.md). Rank 0 says in one line what was chosen.

    Args:
        model: the model, on the CPU.
        optimizer: its optimizer; None for a model that is not trained.
        dtype: what to compute in: ``torch.float32``; ``torch.bfloat16``, by bfloat16 parameters with float32 master
            weights; ``torch.float16``, by autocast, on CPUs that have it (scale the loss: ``torch.amp.GradScaler``).
        ipex: Intel's extension for PyTorch; None uses it where it is installed and made for this torch.
        autocast: for bfloat16, keep float32 parameters and convert on the way: slower, but any model and optimizer will
            do, also those that mix number formats or call a closure.
        compile: compile with ``torch.compile``, which takes a minute. Not beside Intel's extension, release 2.8: with
            that loaded, compiled models get wrong gradients, so torch is told to compile nothing from then on.
        keep_memory: let freed memory stay with the process, for the next step to use. The peak of memory grows
            by up to half; False where memory is scarce.

    Returns:
        The model (compiled, if wanted) and the optimizer.

    Raises:
        UserError: `dtype` cannot be computed in on this CPU, the model is wrapped in DDP already, or Intel's extension
            is asked for by ``ipex=True`` and cannot be used, or `compile` and Intel's extension is loaded.
    """
    precision.check(dtype)
    reason = intel.missing(compile) if ipex is not False else "Intel's extension is not asked for"
    if ipex and reason:
        raise UserError(f"{reason}; leave ipex out to go on without it")
    if compile:
        intel.check_not_loaded()
    chosen = _apply_engine(model, optimizer, reason, keep_memory)
    if dtype is torch.bfloat16 and not autocast:
        master_weights.keep(model, optimizer)
        precision.compute_in(model, dtype)
        chosen.append(_MASTER_WEIGHTS)
    elif dtype is not torch.float32:
        precision.compute_under_autocast(model, dtype)
        chosen.append(f"{precision.name(dtype)} autocast")
    if compile:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", native.own_compile_cache(_rank()))
        model = torch.compile(model)  # type: ignore[assignment]
        chosen.append("torch.compile")
    _note(chosen)
    _say(f"{', '.join(chosen)}{_because(reason)}{_slow(dtype)}{_uncompiled(reason)}")
    return model, optimizer


def in_trainer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, use_ipex: bool, bf16: bool, compiled: bool
) -> master_weights.MasterWeights | None:
    """What `--use_ipex` means to a Trainer, which sees to autocast itself; to be called before DDP.

    Without `use_ipex` nothing is changed: then this only notes what Trainer does, for the run record. Returns the
    master weights, if there are any: Trainer has to be shown them when it saves.
    """
    reason = intel.missing(compiled)
    if compiled:
        intel.check_not_loaded()
    if not use_ipex:
        fused = ["fused " + type(optimizer).__name__] if _is_fused(optimizer) else []
        _note(["native", *fused, *([_AUTOCAST] if bf16 else [])])
        return None
    chosen, masters = _apply_engine(model, optimizer, reason, keep_memory=True), None
    if bf16 and not hasattr(model, "peft_config"):  # adapters are loaded past the model's state
        masters = master_weights.keep(model, optimizer)
        chosen.append(_MASTER_WEIGHTS)
    if bf16:
        chosen.append(_AUTOCAST)
    _note(chosen)
    warning = f"warning: --use_ipex: {reason}; going on with " if reason else ""
    _say(f"{warning}{', '.join(chosen)}{_slow(torch.bfloat16 if bf16 else torch.float32)}{_uncompiled(reason)}")
    return masters


def choices() -> list[str]:
    """What the last call of this job chose; the first entry is "ipex" or "native"."""
    return list(_choices)


def forget() -> None:
    """Start anew: a new job has chosen nothing yet."""
    _note([])


def _apply_engine(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, no_ipex: str | None, keep_memory: bool
) -> list[str]:
    """Everything but the number format; returns what it was."""
    chosen = ["native" if no_ipex else "ipex"]
    if not no_ipex:
        intel.apply(model, optimizer)
    if native.channels_last(model):
        chosen.append("channels-last convolutions")
    if optimizer is not None and native.fuse(optimizer):
        chosen.append(f"fused {type(optimizer).__name__}")
    if keep_memory and memory.keep_freed():
        chosen.append("freed memory kept")
    return chosen


def _is_fused(optimizer: torch.optim.Optimizer) -> bool:
    return any(group.get("fused") for group in optimizer.param_groups)


def _note(chosen: list[str]) -> None:
    _choices[:] = chosen


def _because(no_ipex: str | None) -> str:
    return f" ({no_ipex})" if no_ipex else ""


def _uncompiled(no_ipex: str | None) -> str:
    return "" if no_ipex else "; torch.compile is off beside Intel's extension"


def _slow(dtype: torch.dtype) -> str:
    lacking = dtype is torch.bfloat16 and not precision.has_bf16()
    return "; this CPU has no bfloat16 instructions: expect no gain from it" if lacking else ""


def _rank() -> int:
    return launched_rank() or 0


def _say(what: str) -> None:
    if _rank() == 0:
        print(f"cpudist: optimize: {what}", file=sys.stderr, flush=True)
