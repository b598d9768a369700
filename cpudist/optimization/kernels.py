"""Choose kernels that fit the running job, apply them to a model and its optimizer, record and print them."""

import torch
import torch.distributed as dist

from cpudist import job
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.optimization import ipex, native, operators, precision
from cpudist.optimization.precision import device_type

dtypes: set[torch.dtype] = set()  # The models of the running job compute in these types.
TORCHS = "torch's operators"  # The run record has this entry if cpudist's operators cannot be compiled.


def why_not_ipex(compiled: bool = False) -> str | None:
    """Return why Intel's extension cannot be used here, for a model that is `compiled` or not; None if it can."""
    if device_type() != "cpu":
        return f"Intel's extension is not for the backend {job.require().world.backend}"
    return ipex.missing(compiled)


def check_compiling() -> None:
    """Raise UserError if models must not be compiled: Intel's extension is loaded, or the devices are not CPUs."""
    if device_type() != "cpu":
        raise UserError(f"torch.compile is not for the backend {job.require().world.backend}; leave compile out")
    ipex.check_not_loaded()


def apply(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    no_ipex: str | None,
    keep_memory: bool = True,
    own_operators: bool = True,
) -> list[str]:
    """Apply every optimization except the number format to a model and its optimizer, in place. Call it before DDP.

    The arguments are those of `optimize`, and `no_ipex`: why Intel's extension is not used, None to use it. Return the
    applied optimizations, as the run record lists them; the first entry is "ipex" or "native".
    """
    chosen = ["native" if no_ipex else "ipex"]
    if device_type() != "cpu":
        return chosen
    if not no_ipex:
        ipex.apply(model, optimizer)
    if optimizer is not None and native.fuse(optimizer):
        chosen.append(f"fused {type(optimizer).__name__}")
    if keep_memory and native.keep_freed():
        chosen.append("freed memory kept")
    if not own_operators:
        operators.restore(model)
        return chosen
    try:
        return [*chosen, *operators.use(model)]
    except UserError as error:
        if rank() == 0:
            say(f"warning: {error}; the model uses torch's operators")
        return [*chosen, TORCHS]


def note(names: list[str], dtype: torch.dtype) -> list[str]:
    """Record the optimizations of a model that computes in `dtype`; the run record has those of the newest model.

    Return the record's entries: `names`, whose first is "ipex" or "native", and autocast.
    """
    if dtype is not torch.float32:
        names = [*names, f"{precision.name(dtype)} autocast"]
    dtypes.add(dtype)
    running = job.current()
    if running is not None:
        running.record.optimizations, running.record.dtype = names, precision.name(dtype)
        running.changes.then(dtypes.clear)
    return names


def announce(
    names: list[str], dtype: torch.dtype, no_ipex: str | None, *, warning: str = "", because: str = ""
) -> None:
    """Print one line on rank 0: `warning`, the record's entries `names`, `because`, and remarks about `dtype`."""
    slow = dtype is torch.bfloat16 and not precision.has_bf16()
    slowness = "; this CPU has no bfloat16 instructions: expect no gain from it" if slow else ""
    uncompiled = "" if no_ipex else "; torch.compile is off with Intel's extension"
    if rank() == 0:
        say(f"optimize: {warning}{', '.join(names)}{because}{slowness}{uncompiled}")


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
