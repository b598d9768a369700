"""Draw the dropout of a model's modules on all threads.

PyTorch (2.8 to 2.15) draws masks on one thread on most CPUs. The operators of csrc/dropout.cpp draw them on all of
torch's threads, store no mask for the backward pass, and take a seed from torch's generator. So `manual_seed`, saved
generator states and recomputed activations repeat the masks on any number of threads.

`torch.nn.Dropout`, `torch.nn.MultiheadAttention` and Hugging Face's attention (sdpa) call them instead of torch's
functions. Other modules that call torch's functions, and compiled models, are not changed.
"""

from __future__ import annotations

import copy
import hashlib
import platform
import sys
import timeit
from functools import cache, partial
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from cpudist import compiler
from cpudist.compiler import Compiler, Library
from cpudist.errors import UserError

FILE = "cpudist_dropout.so"
_SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = Path(__file__).parent / "prebuilt"  # exists only in a platform wheel
_FASTER = 0.8  # The operator is used if it takes less than this share of torch's time.
_REPEATS = 8  # The fastest of these calls counts: on a busy machine, threads sometimes wait for a core.
_MARK = "_cpudist_dropout"  # This attribute marks Hugging Face's modules, and the function that checks them.


def divide(model: torch.nn.Module) -> bool:
    """Make the model draw its dropout on all threads, if that is faster than torch at this number of threads.

    Raises:
        UserError: the kernel cannot be compiled or loaded.
    """
    modules = [module for module in model.modules() if _may_drop(module)]
    if not modules:
        return False
    _load()
    if not _is_faster(torch.get_num_threads()):
        return False
    _register_attention()
    for module in modules:
        if type(module) in _OWN:
            module.__class__ = _OWN[type(module)]
        elif not isinstance(module, _Divided):
            module.__dict__[_MARK] = True
    return True


def restore(model: torch.nn.Module) -> None:
    """Restore torch's own dropout in the model."""
    for module in model.modules():
        if isinstance(module, _Divided):
            module.__class__ = module.plain  # type: ignore[assignment]
        module.__dict__.pop(_MARK, None)


def ensure_built(cache: Path | None = None) -> Path:
    """Return the kernel's library, compiling it if neither the wheel nor `cache` (`compiler.cache_folder`) has it.

    Raises:
        UserError: there is no compiler, or the compilation fails.
    """
    prebuilt = _PREBUILT / f"torch{compiler.torch_release()}" / FILE
    return prebuilt if prebuilt.exists() else compiler.ensure(library(), cache)


def library() -> Library:
    """Describe the kernel's library, which belongs to one torch version."""
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(_SOURCES.iterdir())))
    key = f"dropout-{platform.machine()}-torch{compiler.torch_version()}-{content.hexdigest()[:12]}"
    return Library(FILE, "the dropout kernel", "15 to 30 seconds of a core", key, _command)


def _command(found: Compiler, output: Path) -> list[str]:
    source = _SOURCES / "dropout.cpp"
    return [*found.command, "-O3", "-o", str(output), str(source), *found.torch_options(source)]


@cache
def _load() -> None:
    """Register the operators `torch.ops.cpudist`."""
    path = ensure_built()
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise UserError(f"the dropout kernel does not load: {error}; remove {path.parent}") from None


@cache
def _is_faster(_threads: int) -> bool:
    ones = torch.ones(1 << 20)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        ours, torchs = (
            min(timeit.repeat(partial(drop, ones, 0.1, True), number=1, repeat=_REPEATS))
            for drop in (torch.ops.cpudist.dropout, torch.dropout)
        )
    return ours < _FASTER * torchs


class _Divided:
    """Base of the classes that `divide` sets on torch's modules. Copies keep the class; pickles have torch's."""

    plain: type[torch.nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__new__, (self.plain,), self.__dict__

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo[id(self)] = copy.copy(self)
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        twin.__class__ = type(self)
        return twin


class Dropout(_Divided, torch.nn.Dropout):
    plain = torch.nn.Dropout
    __module__ = plain.__module__  # otherwise torch.fx would trace into the module

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.inplace:
            return functional.dropout(input, self.p, self.training, inplace=True)
        return torch.ops.cpudist.dropout(input, self.p, self.training)  # type: ignore[no-any-return]


class MultiheadAttention(_Divided, torch.nn.MultiheadAttention):
    plain = torch.nn.MultiheadAttention
    __module__ = plain.__module__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        divided = self.training and not torch.compiler.is_compiling()
        return (_multihead_attention() if divided else torch.nn.MultiheadAttention.forward)(self, *args, **kwargs)


_OWN: dict[type, Any] = {torch.nn.Dropout: Dropout, torch.nn.MultiheadAttention: MultiheadAttention}


def _may_drop(module: torch.nn.Module) -> bool:
    """Return whether a module may call the operators: one of torch's, or of a Hugging Face model."""
    return type(module) in _OWN or isinstance(module, _Divided) or type(module).__module__.startswith("transformers")


def _with(function: Any, **names: Any) -> Any:
    """Return a copy of a Python function in which the globals `names` have these values."""
    copied = FunctionType(function.__code__, {**function.__globals__, **names}, None, function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _module_with(module: Any, **names: Any) -> Any:
    return SimpleNamespace(**{**vars(module), **names})


@cache
def _multihead_attention() -> Any:
    """Return a copy of the forward of `torch.nn.MultiheadAttention` that calls the operators."""
    ours = {name: getattr(torch.ops.cpudist, name) for name in ("dropout", "scaled_dot_product_attention")}
    attention = _with(functional.multi_head_attention_forward, **ours)
    own = _module_with(functional, multi_head_attention_forward=attention)
    return _with(torch.nn.MultiheadAttention.forward, F=own)


def _register_attention() -> None:
    """Register an attention function with transformers that calls the operators for marked modules."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None or hasattr(torchs := transformers.ALL_ATTENTION_FUNCTIONS["sdpa"], _MARK):
        return
    own = _module_with(functional, scaled_dot_product_attention=torch.ops.cpudist.scaled_dot_product_attention)
    ours = _with(torchs, torch=_module_with(torch, nn=_module_with(torch.nn, functional=own)))

    def attention(module: Any, *args: Any, **kwargs: Any) -> Any:
        divided = hasattr(module, _MARK) and module.training and not torch.compiler.is_compiling()
        return (ours if divided else torchs)(module, *args, **kwargs)

    setattr(attention, _MARK, True)
    transformers.AttentionInterface.register("sdpa", attention)
