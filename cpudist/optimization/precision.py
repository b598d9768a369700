"""Which number formats this CPU computes in, and models that compute in another one than their callers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._pytree import tree_map

from cpudist.errors import UserError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(dtype: torch.dtype) -> None:
    """Refuse what nothing here trains in.

    Raises:
        UserError: names what to use instead.
    """
    if dtype not in DTYPES:
        raise UserError(f"cannot optimise for {name(dtype)}; choose float32, bfloat16 or float16")


def check_fp16() -> None:
    """Refuse float16 on a CPU without instructions for it (AVX512_FP16 or AMX-FP16), where oneDNN has no kernels."""
    if not torch.ops.mkldnn._is_mkldnn_fp16_supported():
        raise UserError(
            "this CPU has no float16 arithmetic (AVX512_FP16 or AMX-FP16), it would be emulated, slowly; "
            "use bfloat16 (--bf16) or float32"
        )


def has_bf16() -> bool:
    """Whether this CPU multiplies in bfloat16, rather than converting to float32 and back."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def name(dtype: torch.dtype) -> str:
    """`torch.bfloat16` as people write it: bfloat16."""
    return str(dtype).removeprefix("torch.")


def compute_under_autocast(model: torch.nn.Module, autocast: torch.autocast) -> None:
    """Let `model` run its forward pass under `autocast`: matrix products in its type, the rest in float32."""
    _replace_forward(model, autocast)


def compute_in(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Let `model`, whose parameters are in `dtype`, take inputs in float32 and return outputs in float32."""

    def run(forward: Any) -> Any:
        def run_in_dtype(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _cast((args, kwargs), torch.float32, dtype)
            # A caller's autocast would convert again.
            with torch.autocast("cpu", enabled=False):
                return forward(*args, **kwargs)

        return run_in_dtype

    _replace_forward(model, run)


def _replace_forward(model: torch.nn.Module, around: Any) -> None:
    forward = model.forward
    run = around(forward)

    @functools.wraps(forward)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        try:
            outputs = run(*args, **kwargs)
        except RuntimeError as error:
            if "dtype" in str(error):
                raise RuntimeError(f"{error} (a model that mixes number formats needs autocast=True)") from error
            raise
        # So that losses and metrics are computed in float32.
        return _cast(outputs, None, torch.float32)

    model.forward = replaced


def _cast(tree: Any, only: torch.dtype | None, dtype: torch.dtype) -> Any:
    """All floating-point tensors in `tree` in `dtype`; with `only`, those of that type alone."""

    def convert(leaf: Any) -> Any:
        wanted = isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and only in (None, leaf.dtype)
        return leaf.to(dtype) if wanted else leaf

    return tree_map(convert, tree)
