"""Products of bfloat16 matrices on CPUs without bfloat16 kernels in oneDNN: mostly CPUs without AVX-512.

PyTorch's own bfloat16 kernels (2.8 to 2.13) are 5 to 50 times slower there than float32. Here the operands are
converted, multiplied in float32, and the result is rounded: the same numbers at nearly float32's speed.

Attention's backward pass, convolutions and compiled models have kernels of their own, which stay as they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

_NAMES = ("mm", "addmm", "bmm", "baddbmm")


def missing() -> bool:
    """Return whether oneDNN has no bfloat16 kernels for this CPU."""
    return not torch.ops.mkldnn._is_mkldnn_bf16_supported()


@functools.cache
def in_float32() -> Any:
    """Multiply bfloat16 matrices on the CPU in float32 from now on, in this process.

    Returns:
        The `torch.library.Library` that holds the kernels.
    """
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        for name in _NAMES:
            library.impl(name, _product(getattr(torch.ops.aten, name).out), "CPU")
    return library


def _product(multiply: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a kernel that calls `multiply` in float32; `multiply` is the variant of a product that writes into a
    tensor.
    """

    def product(*operands: torch.Tensor, **factors: Any) -> torch.Tensor:
        if any(operand.dtype is not torch.bfloat16 for operand in operands):
            return multiply(*operands, **factors, out=operands[0].new_empty(0))
        operands = tuple(operand.float() for operand in operands)
        return multiply(*operands, **factors, out=operands[0].new_empty(0)).bfloat16()

    return product
