"""Choose the optimizations that fit the running job, apply them, and tell the user."""

from __future__ import annotations

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.optimization import dropout, ipex, native, precision, products

MASTER_WEIGHTS = "bfloat16 parameters with float32 master weights"
ONE_THREAD = "dropout on one thread"
IN_FLOAT32 = "bfloat16 matrices multiplied in float32"


def why_not_ipex(compiled: bool = False) -> str | None:
    """Return why Intel's extension cannot be used here; None where it can.

    Args:
        compiled: whether the model will be compiled.
    """
    if not on_cpu():
        return f"Intel's extension is not for the backend {job.require().world.backend}"
    return ipex.missing(compiled)


def check_compiling() -> None:
    """Check that compiled models are right in this process.

    Raises:
        UserError: they are not, since Intel's extension is loaded, or the running job's backend compiles by itself.
    """
    if not on_cpu():
        raise UserError(f"torch.compile is not for the backend {job.require().world.backend}; leave compile out")
    ipex.check_not_loaded()


def apply_kernels(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    no_ipex: str | None,
    keep_memory: bool = True,
    parallel_dropout: bool = True,
) -> list[str]:
    """Apply every optimization except the number format to a model and its optimizer, in place. Call it before DDP.

    Args:
        model: as for `optimize`.
        optimizer: as for `optimize`.
        no_ipex: why Intel's extension is not used; None to use it.
        keep_memory: whether freed memory is kept in the process.
        parallel_dropout: whether dropout is drawn on all threads.

    Returns:
        The applied optimizations, as the run record lists them; the first entry is "ipex" or "native".
    """
    chosen = ["native" if no_ipex else "ipex"]
    if not on_cpu():
        return chosen
    if not no_ipex:
        ipex.apply(model, optimizer)
    if native.channels_last(model):
        chosen.append("channels-last convolutions")
    if optimizer is not None and native.fuse(optimizer):
        chosen.append(fused_name(optimizer))
    if keep_memory and native.keep_freed():
        chosen.append("freed memory kept")
    if parallel_dropout:
        chosen += _divide_dropout(model)
    else:
        dropout.restore(model)
    return chosen


def _divide_dropout(model: torch.nn.Module) -> list[str]:
    """Draw the model's dropout on all threads, if that is faster; return the record's entries for it."""
    try:
        return ["parallel dropout"] if dropout.divide(model) else []
    except UserError as error:
        if rank() == 0:
            say(f"warning: {error}; dropout stays on one thread")
        return [ONE_THREAD]


def multiply(dtype: torch.dtype) -> list[str]:
    """Let this CPU multiply matrices of `dtype` fast, where PyTorch would not; return the record's entries for it."""
    if dtype is not torch.bfloat16 or not on_cpu() or not products.missing():
        return []
    products.in_float32()
    return [IN_FLOAT32]


def fused_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the run record's entry for a fused optimizer."""
    return f"fused {type(optimizer).__name__}"


def autocast_in(dtype: torch.dtype) -> str:
    """Return the run record's entry for autocast."""
    return f"{precision.name(dtype)} autocast"


def note(chosen: list[str]) -> None:
    """Put the entries `chosen` into the running job's record."""
    running = job.current()
    if running is not None:
        running.record.optimizations = chosen


def announce(
    chosen: list[str], dtype: torch.dtype, no_ipex: str | None, *, warning: str = "", because: str = ""
) -> None:
    """Print one line on rank 0: the choice, and remarks for the user.

    Args:
        chosen: the record's entries.
        dtype: the type that the model computes in.
        no_ipex: why Intel's extension is not used; None where it is.
        warning: text before the entries.
        because: text after them.
    """
    slow = dtype is torch.bfloat16 and not precision.has_bf16()
    slowness = "; this CPU has no bfloat16 instructions: expect no gain from it" if slow else ""
    uncompiled = "" if no_ipex else "; torch.compile is off beside Intel's extension"
    if rank() == 0:
        say(f"optimize: {warning}{', '.join(chosen)}{because}{slowness}{uncompiled}")


def device_type() -> str:
    """Return the type of the devices of the running job; without a job the CPU's."""
    running = job.current()
    return "cpu" if running is None else running.world.device_type


def on_cpu() -> bool:
    """Return whether models are trained on the CPU; on other devices only autocast is applied."""
    return device_type() == "cpu"


def check(dtype: torch.dtype) -> None:
    """Check that the devices of the running job, or without a job the CPU, can train in `dtype`.

    Raises:
        UserError: they cannot; the message names the reason and what to use instead.
    """
    precision.check(dtype)
    if dtype is torch.float16:
        check_float16()


def check_float16() -> None:
    """Check that the devices of the running job, or without a job the CPU, can train in float16.

    Raises:
        UserError: they cannot; the message names the reason and what to use instead.
    """
    if not on_cpu():
        backend = job.require().world.backend
        raise UserError(f"float16 is not for the backend {backend}; use bfloat16 (--bf16) or float32")
    precision.check_fp16()


def rank() -> int:
    """Return this process's rank; 0 where there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
