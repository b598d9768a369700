"""Number formats: those of this CPU, and models that compute in another format than their callers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

from cpudist.errors import UserError
from cpudist.optimization import products
from cpudist.topology.kernel_files import Files
from cpudist.topology.machine import BFLOAT16, features, units

IN_FLOAT32 = "bfloat16 convolutions would be many times slower on this CPU: computing in float32"

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(dtype: torch.dtype) -> None:
    """Check that `dtype` is one of `DTYPES`.

    Raises:
        UserError: it is not; the message names the alternatives.
    """
    if dtype not in DTYPES:
        raise UserError(f"cannot optimise for {name(dtype)}; choose float32, bfloat16 or float16")


def check_fp16() -> None:
    """Check that this CPU has instructions for float16 (AVX512_FP16 or AMX-FP16); oneDNN has no kernels for others.

    Raises:
        UserError: it has none.
    """
    if not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        raise UserError(
            "this CPU has no float16 arithmetic (AVX512_FP16 or AMX-FP16), and emulating it is slow; "
            "use bfloat16 (--bf16) or float32"
        )


def has_bf16(files: Files | None = None) -> bool:
    """Return whether this CPU multiplies in bfloat16, rather than converting to float32 and back.

    Args:
        files: the kernel's files of another machine; None: of this one.
    """
    found = features(files or Files())
    return found is not None and bool(units(found, BFLOAT16))


def slow_in_bf16(model: torch.nn.Module) -> bool:
    """Return whether `model` has layers that this CPU computes much slower in bfloat16 than in float32.

    Where oneDNN has no bfloat16 kernels, mostly without AVX-512, products.py multiplies matrices in float32. PyTorch's
    own convolutions (2.8 to 2.13) take 25 to 30 times as long in bfloat16 as in float32.
    """
    convolves = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in model.modules())
    return convolves and products.missing()


def name(dtype: torch.dtype) -> str:
    """Return the name of `dtype` without "torch."."""
    return str(dtype).removeprefix("torch.")


def compute_in(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Let `model`, whose parameters are in `dtype`, take float32 inputs and return float32 outputs, of any shapes."""
    # Under a caller's autocast the model would convert again.
    _replace_forward(model, torch.autocast("cpu", enabled=False), dtype)


def compute_under(model: torch.nn.Module, autocast: torch.autocast) -> None:
    """Let `model` run its forward pass under `autocast`, and return floating-point outputs in float32."""
    _replace_forward(model, autocast, None)


def _replace_forward(model: torch.nn.Module, autocast: torch.autocast, inputs: torch.dtype | None) -> None:
    # copy.deepcopy copies a partial with the method's object, but no closure: a copy's forward pass is its own.
    forward = functools.partial(_run, model.forward, autocast, inputs)
    model.forward = functools.update_wrapper(forward, model.forward)


def _run(forward: Any, autocast: torch.autocast, inputs: torch.dtype | None, *args: Any, **kwargs: Any) -> Any:
    if inputs is not None:
        args, kwargs = _cast((args, kwargs), torch.float32, inputs)
    try:
        with autocast:
            outputs = forward(*args, **kwargs)
    except RuntimeError as error:
        if "dtype" in str(error):
            raise RuntimeError(f"{error} (the model mixes number formats; call optimize with autocast=True)") from error
        raise
    # Losses and metrics are computed in float32.
    return _cast(outputs, None, torch.float32)


def _cast(tree: Any, only: torch.dtype | None, dtype: torch.dtype) -> Any:
    """Convert all floating-point tensors in `tree` to `dtype`; with `only`, just tensors of that type."""

    def convert(leaf: Any) -> Any:
        wanted = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and only in (None, leaf.dtype)
        return leaf.to(dtype) if wanted else leaf

    return tree_map(convert, tree)
