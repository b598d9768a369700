"""Choose kernels that fit the running job, and apply them to a model and its optimizer."""

import torch

from cpudist import job
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.optimization import ipex, native, operators
from cpudist.optimization.applied import rank
from cpudist.optimization.precision import device_type

TORCHS = "torch's operators"  # The run record has this entry if cpudist's cannot be compiled.


def why_not_ipex(compiled: bool = False) -> str | None:
    """Return why Intel's extension cannot be used here, for a model that is `compiled` or not; None if it can."""
    if device_type() != "cpu":
        return f"Intel's extension is not for the backend {job.require().world.backend}"
    return ipex.missing(compiled)


def check_compiling() -> None:
    """Check that compiled models compute correctly in this process.

    Raises:
        UserError: Intel's extension is loaded, or the running job's backend compiles by itself.
    """
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

    The arguments are those of `optimize`, and `no_ipex`: why Intel's extension is not used, None to use it.

    Returns:
        The applied optimizations, as the run record lists them; the first entry is "ipex" or "native".
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
