"""Draw the dropout of a model's modules on all threads.

PyTorch (2.8 to 2.15) draws masks on one thread on most CPUs. The operators of csrc/dropout.cpp draw them on all of
torch's threads, store no mask for the backward pass, and take a seed from torch's generator. So `manual_seed`, saved
generator states and recomputed activations repeat the masks on any number of threads.

The modules `torch.nn.Dropout` and `torch.nn.MultiheadAttention` and the attention of Hugging Face's models use them.
Other modules, `torch.nn.MultiheadAttention` in compiled models, and attention under torch.func have torch's dropout.
"""

import functools
import hashlib
import platform
import timeit
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from cpudist import compiler
from cpudist.compiler import Library
from cpudist.errors import UserError

FILE = "cpudist_dropout.so"
_SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = Path(__file__).parent / "prebuilt"  # exists only in a platform wheel
_FASTER = 0.8  # The operator is used if it takes less than this share of torch's time.
_REPEATS = 8  # The fastest of these calls counts: on a busy machine, threads sometimes wait for a core.
_key: Any = None  # The dispatch key under which torch draws on all threads; None before `_load`, as after unpickling.


def divide(model: torch.nn.Module) -> bool:
    """Make the model draw its dropout on all threads, if that is faster than torch at this number of threads."""
    modules = [(module, forward) for module in model.modules() if (forward := _forward_of(module))]
    if not modules or not _is_faster(torch.get_num_threads()):
        return False
    restore(model)
    for module, forward in modules:
        # A partial, not a closure: copy.deepcopy copies its module too.
        replacement = functools.partial(forward, module, module.forward)
        module.forward = functools.update_wrapper(replacement, module.forward)
    return True


def restore(model: torch.nn.Module) -> None:
    """Restore torch's own dropout in the model."""
    for module in model.modules():
        forward: Any = module.forward
        if isinstance(forward, functools.partial) and forward.func in (_drop, _attend):
            module.forward = forward.args[1]


def ensure_built(cache: Path | None = None) -> Path:
    """Return the kernel's library, compiling it if neither the wheel nor `cache` (`compiler.cache_folder`) has it."""
    prebuilt = _PREBUILT / f"torch{compiler.torch_release()}" / FILE
    return prebuilt if prebuilt.exists() else compiler.ensure(library(), cache)


def library() -> Library:
    """Describe the kernel's library, which belongs to one torch version."""
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(_SOURCES.iterdir())))
    key = f"dropout-{platform.machine()}-torch{version('torch')}-{content.hexdigest()[:12]}"
    source = _SOURCES / "dropout.cpp"
    return Library(
        *(FILE, "the dropout kernel", "15 to 30 seconds of a core", key),
        lambda found, to: [*found.command, "-O3", "-o", str(to), str(source), *found.torch_options(source)],
    )


@functools.cache
def _load() -> None:
    """Register the operators `torch.ops.cpudist`, or raise UserError if the kernel cannot be compiled or loaded."""
    path = ensure_built()
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise UserError(f"the dropout kernel does not load: {error}; remove {path.parent}") from None
    global _key
    _key = torch._C.DispatchKey(torch.ops.cpudist.dispatch_key())


@functools.cache
def _is_faster(_threads: int) -> bool:
    _load()
    ones = torch.ones(1 << 20)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        ours, torchs = (
            min(timeit.repeat(functools.partial(drop, ones, 0.1, True), number=1, repeat=_REPEATS))
            for drop in (torch.ops.cpudist.dropout, torch.dropout)
        )
    return ours < _FASTER * torchs


def _forward_of(module: torch.nn.Module) -> Callable[..., Any] | None:
    """Return the function that replaces a module's forward pass, if the module may draw dropout."""
    kind = type(module)
    if kind is torch.nn.Dropout:
        return _drop
    of_transformers = kind.__module__.startswith("transformers") and "Attention" in kind.__name__
    return _attend if kind is torch.nn.MultiheadAttention or of_transformers else None


class _TracedAttention(torch.overrides.TorchFunctionMode):
    """Let a compiler trace torch's attention with the operators' dropout."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.scaled_dot_product_attention and type(args[0]) is torch.Tensor:
            function = torch.ops.cpudist.attention
        return function(*args, **(kwargs or {}))


def _drop(module: Any, forward: Any, /, input: torch.Tensor) -> torch.Tensor:
    if module.inplace or _key is None or (torch.compiler.is_compiling() and type(input) is not torch.Tensor):
        return forward(input)  # type: ignore[no-any-return]
    return torch.ops.cpudist.dropout(input, module.p, module.training)  # type: ignore[no-any-return]


def _attend(module: Any, forward: Any, /, *args: Any, **kwargs: Any) -> Any:
    if not module.training or _key is None:
        return forward(*args, **kwargs)
    # A compiler cannot trace the guard.
    with _TracedAttention() if torch.compiler.is_compiling() else torch._C._IncludeDispatchKeyGuard(_key):
        return forward(*args, **kwargs)
