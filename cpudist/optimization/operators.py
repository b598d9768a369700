"""Replace slow parts of a model's modules by operators of csrc, where they are faster than torch's on this CPU.

Attention, with and without dropout, is computed in one pass, in bfloat16 and float32, where the CPU has AVX-512 with
bfloat16. With dropout, torch (2.8 to 2.15) does not use its flash kernel, and keeps the probabilities.

Dropout is drawn on all threads; torch draws it on one thread on most CPUs. No mask is stored for the backward pass, and
the seed comes from torch's generator. So `manual_seed`, saved generator states and recomputed activations repeat the
masks on any number of threads.

The backward pass of a linear layer leaves out tokens without a gradient if more than half have none. In layers of keys
and values these are padding, in a model's last layer tokens without a label. Cross entropy leaves out rows without a
label if a head is wide. On CPUs with AMX a linear layer first copies the transposed factor of its weight's gradient.

Other modules, torch.func, and in compiled models linear layers and `MultiheadAttention` use torch's operators.
"""

import contextlib
import functools
import hashlib
import inspect
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

FILE = "cpudist_operators.so"
_SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = Path(__file__).parent / "prebuilt"  # exists only in a platform wheel
_FASTER = 0.8  # cpudist's dropout is used if it takes less than this share of the time of torch's.
_REPEATS = 8  # Take the fastest of this number of calls: on a busy machine, threads sometimes wait for a core.
_WIDE = 8192  # Cross entropy looks for rows without a label if a linear layer has at least this number of outputs.
_key: Any = None  # Dispatch key with which torch uses the operators; None before `_load`, e.g. after unpickling.

ATTENTION, DROPOUT, LINEAR, COPY = "attention in one pass", "parallel dropout", "rows with a gradient", "copied factors"


def use(model: torch.nn.Module) -> list[str]:
    """Make the model use the operators that are faster than torch's at this number of threads; return their names."""
    restore(model)
    found = [(module, *replacement) for module in model.modules() if (replacement := _replacement(module))]
    # Only attention and a wide head leave tokens without a gradient.
    if not _copies() and not any(name == ATTENTION or _outputs(module) >= _WIDE for module, name, _ in found):
        found = [(module, name, forward) for module, name, forward in found if name != LINEAR]
    faster = _faster(torch.get_num_threads()) if found else set()
    found = [(module, name, forward) for module, name, forward in found if name in faster]
    for module, _, forward in found:
        replace_forward(module, functools.partial(forward, module, module.forward))
    names = {name for _, name, _ in found}
    if ATTENTION in names and not torch.ops.cpudist.has_kernels():  # torch's attention, with masks of cpudist
        names = names - {ATTENTION} | {DROPOUT}
    if LINEAR in names and _copies():
        names.add(COPY)
    if any(_outputs(module) >= _WIDE for module, *_ in found):
        replace_forward(model, functools.partial(_with_labelled_rows, model, model.forward))
    return sorted(names)


def replace_forward(module: Any, forward: functools.partial[Any]) -> None:
    """Replace a module's forward pass by a partial: unlike in a closure, copy.deepcopy copies the module in it."""
    module.forward = functools.update_wrapper(forward, module.forward)
    module.__prepare_scriptable__ = functools.partial(_check_scriptable, module)  # torch.jit.script calls it


def _check_scriptable(module: torch.nn.Module) -> torch.nn.Module:
    if isinstance(module.forward, functools.partial):
        raise UserError("torch.jit.script cannot compile an optimized model; call it before cpudist.optimize()")
    return module


def restore(model: torch.nn.Module) -> None:
    """Restore torch's own operators in the model."""
    for module in model.modules():
        forward: Any = module.forward
        while isinstance(forward, functools.partial) and forward.func.__module__ == __name__:
            forward = module.forward = forward.args[1]


def ensure_built(cache: Path | None = None) -> Path:
    """Return the operators' library, compiling it if neither the wheel nor `cache` (`compiler.build_folder`) has it."""
    prebuilt = _PREBUILT / f"torch{compiler.torch_release()}" / FILE
    return prebuilt if prebuilt.exists() else compiler.ensure(library(), cache)


def library() -> Library:
    """Describe the operators' library, which belongs to one torch version."""
    content = hashlib.sha256(b"".join(source.read_bytes() for source in sorted(_SOURCES.iterdir())))
    key = f"operators-{platform.machine()}-torch{version('torch')}-{content.hexdigest()[:12]}"
    source = _SOURCES / "unity.cpp"
    return Library(
        *(FILE, "the training operators", "30 seconds of a core", key),
        lambda found, to: [*found.command, "-O3", "-o", str(to), str(source), *found.torch_options(source)],
    )


@functools.cache
def _load() -> None:
    """Register the operators `torch.ops.cpudist`, or raise UserError if they cannot be compiled or loaded."""
    path = ensure_built()
    try:
        torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise UserError(f"the training operators do not load: {error}; remove {path.parent}") from None
    global _key
    _key = torch._C.DispatchKey(torch.ops.cpudist.dispatch_key())


@functools.cache
def _faster(_threads: int) -> set[str]:
    """Return the names of the operators that are faster than torch's here; only dropout is timed."""
    _load()
    ones = torch.ones(1 << 20)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        ours, torchs = (
            min(timeit.repeat(functools.partial(drop, ones, 0.1, True), number=1, repeat=_REPEATS))
            for drop in (torch.ops.cpudist.dropout, torch.dropout)
        )
    if ours < _FASTER * torchs:
        return {LINEAR, DROPOUT, ATTENTION}
    return {LINEAR, ATTENTION} if torch.ops.cpudist.has_kernels() else {LINEAR}


def _replacement(module: torch.nn.Module) -> tuple[str, Callable[..., Any]] | None:
    """Return the optimization of a module and the function that replaces its forward pass; None to keep torch's."""
    kind = type(module)
    if kind is torch.nn.Dropout:
        return DROPOUT, _drop
    if _outputs(module):
        return LINEAR, _multiply
    of_transformers = kind.__module__.startswith("transformers") and "Attention" in kind.__name__
    return (ATTENTION, _attend) if kind is torch.nn.MultiheadAttention or of_transformers else None


def _outputs(module: torch.nn.Module) -> int:
    """Return the number of outputs of a linear layer of torch or Hugging Face; 0 for other modules."""
    if type(module) is torch.nn.Linear:
        return module.out_features
    return module.nf if _is_turned(module) else 0  # type: ignore[return-value]


def _is_turned(module: torch.nn.Module) -> bool:
    """Return whether a module is Hugging Face's Conv1D, a linear layer whose weight is transposed."""
    return type(module).__name__ == "Conv1D" and type(module).__module__ == "transformers.pytorch_utils"


def _copies() -> bool:
    # On AMX a product in bfloat16 takes twice as long if its first factor is transposed. On AVX512_BF16 it does not.
    return torch.cpu._is_amx_tile_supported()


class _TracedAttention(torch.overrides.TorchFunctionMode):
    """Call cpudist's attention instead of torch's, in a form that torch.compile can trace."""

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
    # torch.compile cannot trace the guard of the dispatch key.
    with _TracedAttention() if torch.compiler.is_compiling() else torch._C._IncludeDispatchKeyGuard(_key):
        return forward(*args, **kwargs)


def _multiply(module: Any, forward: Any, /, input: torch.Tensor) -> torch.Tensor:
    if torch.compiler.is_compiling() or _key is None:
        return forward(input)  # type: ignore[no-any-return]
    how = _is_turned(module), _copies()
    return torch.ops.cpudist.linear(input, module.weight, module.bias, *how)  # type: ignore[no-any-return]


class _LabelledRows(torch.overrides.TorchFunctionMode):
    """Compute cross entropy, and its gradient, on rows with a label only, if these are fewer than half."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.cross_entropy:
            function = _cross_entropy
        return function(*args, **(kwargs or {}))


def _cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
    options = inspect.signature(torch.nn.functional.cross_entropy).bind(input, target, *args, **kwargs).arguments
    rows = input.dim() == 2 and target.dim() == 1 and options.get("reduction", "mean") != "none"
    # The number of labels is unknown under torch.func.
    if rows and input.is_cpu and torch._C._functorch.peek_interpreter_stack() is None:
        labelled = (target != options.get("ignore_index", -100)).nonzero().squeeze(1)
        if 2 * len(labelled) < len(target):
            input, target = input.index_select(0, labelled), target.index_select(0, labelled)
    return torch.nn.functional.cross_entropy(input, target, *args, **kwargs)


def _with_labelled_rows(_model: Any, forward: Any, /, *args: Any, **kwargs: Any) -> Any:
    with contextlib.nullcontext() if torch.compiler.is_compiling() else _LabelledRows():
        return forward(*args, **kwargs)
