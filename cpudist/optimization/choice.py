"""What is done to one model and its optimizer: what fits here, doing it, and saying so."""

from __future__ import annotations

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.backends.base import Optimization
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.optimization import ipex, memory, native, precision

MASTER_WEIGHTS = "bfloat16 parameters with float32 master weights"


def why_not_ipex(compiled: bool) -> str | None:
    """Why Intel's extension is not used here, for a model that will be `compiled` or not; None where it can be."""
    if not fits("ipex"):
        return f"Intel's extension is not for the backend {job.require().world.backend}"
    return ipex.missing(compiled)


def check_compiling() -> None:
    """Refuse to compile where compiled models would be wrong.

    Raises:
        UserError: Intel's extension is loaded, or the running job's backend compiles by itself.
    """
    if not fits("compile"):
        raise UserError(f"torch.compile is not for the backend {job.require().world.backend}; leave compile out")
    ipex.check_not_loaded()


def apply_kernels(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, no_ipex: str | None, keep_memory: bool = True
) -> list[str]:
    """Do everything to a model and its optimizer but the number format, before DDP; both are changed in place.

    Args:
        model, optimizer: as for `optimize`.
        no_ipex: why Intel's extension is not used; None to use it.
        keep_memory: whether freed memory is to stay with the process.

    Returns:
        What was done, as the run record lists it; the first entry is "ipex" or "native".
    """
    chosen = ["native" if no_ipex else "ipex"]
    if not no_ipex:
        ipex.apply(model, optimizer)
    if fits("channels_last") and native.channels_last(model):
        chosen.append("channels-last convolutions")
    if fits("fused") and optimizer is not None and native.fuse(optimizer):
        chosen.append(fused_name(optimizer))
    if fits("keep_memory") and keep_memory and memory.keep_freed():
        chosen.append("freed memory kept")
    return chosen


def fused_name(optimizer: torch.optim.Optimizer) -> str:
    """A fused optimizer as the run record lists it."""
    return f"fused {type(optimizer).__name__}"


def autocast_in(dtype: torch.dtype) -> str:
    """Autocast as the run record lists it."""
    return f"{precision.name(dtype)} autocast"


def note(chosen: list[str]) -> None:
    """Put what was chosen into the running job's record."""
    running = job.current()
    if running is not None:
        running.record.optimizations = chosen


def announce(
    chosen: list[str], dtype: torch.dtype, no_ipex: str | None, *, warning: str = "", because: str = ""
) -> None:
    """Say in one line, on rank 0, what was chosen, and what the user should know of it."""
    slow = dtype is torch.bfloat16 and not precision.has_bf16()
    slowness = "; this CPU has no bfloat16 instructions: expect no gain from it" if slow else ""
    uncompiled = "" if no_ipex else "; torch.compile is off beside Intel's extension"
    if rank() == 0:
        say(f"optimize: {warning}{', '.join(chosen)}{because}{slowness}{uncompiled}")


def fits(optimization: Optimization) -> bool:
    """Whether this suits the devices of the running job; without one, the CPU, which everything suits."""
    running = job.current()
    return running is None or optimization in running.backend.optimizations


def check(dtype: torch.dtype) -> None:
    """Refuse what cannot be trained in on the devices of the running job; without one, on the CPU.

    Raises:
        UserError: names the reason and what to use instead.
    """
    precision.check(dtype)
    running = job.current()
    if dtype is torch.float16:
        if running is None or running.world.device_type == "cpu":
            precision.check_fp16()
        else:
            running.backend.check_float16()


def autocast(dtype: torch.dtype) -> torch.autocast:
    """Autocast for the devices of the running job; without one, for the CPU."""
    running = job.current()
    return torch.autocast("cpu", dtype=dtype) if running is None else running.backend.autocast(dtype)


def skip_on_device(optimizer: torch.optim.Optimizer) -> list[str]:
    """Let the optimizer leave out what a GradScaler rejects by itself, where the backend can; what was done, if any."""
    running = job.current()
    done = running.backend.skip_on_device(optimizer) if running is not None else None
    return [done] if done else []


def rank() -> int:
    """This process's rank; 0 where there is no process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
