"""Dropout on all threads.

PyTorch (2.8 to 2.15) draws masks on one thread, except by MKL on Intel's CPUs: 8 ns an element. Here the kernel of
csrc/dropout.cpp draws them, divided over torch's threads. It takes a seed from the tensor's generator in each call, so
that manual_seed, saved states of the generator and recomputed activations repeat masks, on any number of threads.

Two kernels of torch are replaced, below every model: `bernoulli_`, and `dropout` for float32 and bfloat16, which draws
its mask a second time in the backward pass instead of keeping it.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from cpudist import compiler
from cpudist.changes import Changes
from cpudist.compiler import Compiler, Library
from cpudist.errors import UserError

_SOURCES = Path(__file__).parent / "csrc"
PREBUILT = Path(__file__).parent / "prebuilt" / "cpudist_dropout.so"  # only in a platform wheel

_FEW = 32768  # elements; for fewer, calls from Python take longer than torch's own passes (at::internal::GRAIN_SIZE)
_WIDEST = 64  # bytes of a vector
_DROPOUT = {torch.float32: "cpudist_dropout_float32", torch.bfloat16: "cpudist_dropout_bfloat16"}
# The bits of 1.
_ONE = dict.fromkeys((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), 1)
_ONE |= {torch.float16: 0x3C00, torch.bfloat16: 0x3F80, torch.float32: 0x3F800000, torch.float64: 0x3FF << 52}

_replaced: Any = None  # the `torch.library.Library` with the kernels


def library() -> Library:
    """Describe the kernel's library, which all versions of torch and Python can load."""
    content = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        content.update(source.read_bytes())
    key = f"dropout-{platform.machine()}-{content.hexdigest()[:12]}"
    return Library(PREBUILT.name, "the dropout kernel", "some seconds", key, _command)


def ensure_built(cache: Path | None = None) -> Path:
    """Return the kernel's library, compiling it if neither the wheel nor the cache has it.

    Args:
        cache: the folder of compiled libraries; None for `compiler.cache_folder`.

    Raises:
        UserError: there is no compiler, or the compilation fails.
    """
    return PREBUILT if PREBUILT.exists() else compiler.ensure(library(), cache)


def draw_on_all_threads(changes: Changes | None) -> None:
    """Replace torch's kernels in this process, until `changes` are undone; None: to its end.

    Raises:
        UserError: the kernel cannot be compiled or loaded.
    """
    global _replaced
    if _replaced is not None:
        return
    _kernel()
    _replaced = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        _replaced.impl("bernoulli_.float", _bernoulli, "CPU")
        _replaced.impl("dropout", _dropout, "AutogradCPU")
    if changes is not None:
        changes.then(_restore)


def _restore() -> None:
    global _replaced
    _replaced._destroy()
    _replaced = None


def _command(compiler: Compiler, output: Path) -> list[str]:
    # -Wno-psabi: vectors are passed to functions of this file alone.
    flags = ["-O3", "-std=c++20", "-fPIC", "-shared", "-Wno-psabi", *compiler.openmp]
    return [*compiler.command, *flags, "-o", str(output), str(_SOURCES / "dropout.cpp")]


@cache
def _kernel() -> ctypes.CDLL:
    path = ensure_built()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"the dropout kernel does not load: {error}; remove {path.parent}") from None


def _seed(generator: torch.Generator | None = None) -> int:
    """Return the next number of a generator of torch, by default the one that `manual_seed` seeds."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _mask(count: int, p: float, seed: int) -> tuple[Any, ...]:
    """Return the last arguments of the kernel's functions: how many bits to draw, which are 1 with probability `p`."""
    threshold = min(round(p * 2**32), 2**32 - 1)
    threads = torch.get_num_threads() if count >= _FEW else 1
    return ctypes.c_size_t(count), ctypes.c_uint64(seed), ctypes.c_uint32(threshold), threads, _WIDEST


def _bernoulli(tensor: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> Any:
    """The kernel of `Tensor.bernoulli_` for a number `p`."""
    if not (0 < p < 1 and tensor.dtype in _ONE):  # errors are torch's
        return torch.ops.aten.bernoulli_.Tensor(tensor, torch.tensor(p, dtype=torch.float64), generator=generator)
    like = torch.empty_like(tensor)  # dense: without gaps in memory
    drawn = tensor if tensor.stride() == like.stride() else like
    bits = drawn.element_size(), ctypes.c_uint64(_ONE[tensor.dtype])
    _kernel().cpudist_bernoulli(ctypes.c_void_p(drawn.data_ptr()), *bits, *_mask(drawn.numel(), p, _seed(generator)))
    return tensor if drawn is tensor else tensor.copy_(drawn)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> Any:
    """The kernel of `torch.dropout`. Traces, and tensors that are small or special, get torch's, with `_bernoulli`."""
    torchs = torch.ops.aten.dropout.default
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or is_in_torch_dispatch_mode() or torch._C._are_functorch_transforms_active():
        return torchs.decompose(tensor, p, train)
    if not (train and 0 < p < 1 and tensor.dtype in _DROPOUT and tensor.numel() >= _FEW):
        return torchs._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, tensor, p, train)
    return _Dropout.apply(tensor, torch.empty_like(tensor).stride(), p, _seed())  # type: ignore[no-untyped-call]


class _Dropout(torch.autograd.Function):
    """A product with a mask. It is linear, so its derivatives are products with the same mask, drawn again."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, stride: tuple[int, ...], p: float, seed: int) -> torch.Tensor:
        ctx.how = stride, p, seed
        out = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
        if tensor.stride() != stride:  # the mask goes by places in memory
            tensor = out.copy_(tensor)
        pointers = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(out.data_ptr())
        scale = ctypes.c_float(float(torch.ones((), dtype=tensor.dtype).div_(1 - p)))  # rounded as torch's noise
        getattr(_kernel(), _DROPOUT[tensor.dtype])(*pointers, scale, *_mask(out.numel(), 1 - p, seed))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _Dropout.apply(gradient, *ctx.how), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> Any:
        return _Dropout.apply(tangent, *ctx.how)  # type: ignore[no-untyped-call]
