"""Intel's extension for PyTorch, where it is installed and made for this torch.

It is applied without prepacking weights: moving a model whose weights are prepacked, as accelerate does (to "cpu:0"),
corrupts them without an error, and prepacking was measured to gain nothing (docs/performance.md). Nor does it cast
weights or fuse the optimizer: number formats are chosen elsewhere, and PyTorch's fused optimizers are as fast.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

import torch

from cpudist.errors import UserError

PACKAGE = "intel_extension_for_pytorch"

_NOT_COMPILED = "beside Intel's extension compiled models get no gradients below a layer norm"

# Notes that it replaces kernels of torch, as it should, with the details of one; and on what it found of the machine.
_NOTES = ("Warning only once for all operators", "No CUDA runtime is found", "My guessed rank = ")
_DETAILS = ("Overriding a previously", "operator:", "registered at", "dispatch key:", "previous kernel:", "new kernel:")


def missing(compiled: bool = False) -> str | None:
    """Why Intel's extension cannot be used here, for a model that will be `compiled` or not; None where it can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        found = ""
    if not found and torch.__version__.startswith("2.8."):
        return f"{PACKAGE} is not installed (pip install {PACKAGE}==2.8.0)"
    if not found:
        return f"there is no {PACKAGE} for torch {torch.__version__}, it ended with torch 2.8"
    if found.split(".")[:2] != torch.__version__.split(".")[:2]:
        return f"{PACKAGE} {found} is not for torch {torch.__version__}"
    return _NOT_COMPILED if compiled else None


def check_not_loaded() -> None:
    """Refuse to compile in a process that has loaded Intel's extension.

    Raises:
        UserError: it is loaded. Release 2.8 puts a kernel without a gradient in the place of torch's layer norm;
            compiled models take that as it is, and the parameters below it get no gradient, without an error.
    """
    if PACKAGE in sys.modules:
        raise UserError(f"{PACKAGE} is loaded: {_NOT_COMPILED}; compile in a process without it")


def apply(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Optimise `model` in place. Must come before DDP: layers may be replaced, such as LSTMs.

    Source: ``intel_extension_for_pytorch.optimize``, release 2.8.
    """
    # Its layer norm is not registered as torch 2.8 wants it; its gradients are right (tests/optimization).
    warnings.filterwarnings("ignore", "aten::layer_norm: an autograd kernel was not registered", UserWarning)
    # It imports accelerate, which takes torch_xla in unless told not to.
    os.environ.setdefault("USE_TORCH_XLA", "0")
    with _without_its_notes():
        extension: Any = __import__(PACKAGE)  # replaces kernels of torch
        torch.compiler.set_stance("force_eager")  # see check_not_loaded: from here on, nothing is compiled
        if optimizer is None:  # for inference it would fold layers, and the model could no more be saved as it was
            return
        with _in_training(model):
            extension.optimize(
                model,
                optimizer=optimizer,
                dtype=torch.float32,  # the number format is chosen elsewhere, this says: leave the weights alone
                inplace=True,
                weights_prepack=False,
                split_master_weight_for_bf16=False,
                fuse_update_step=False,
            )


@contextlib.contextmanager
def _in_training(model: torch.nn.Module) -> Iterator[None]:
    """Intel's extension goes by the mode, and pretrained models come in that for evaluation."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module in model.modules():
            module.training = modes.get(module, model.training)


@contextlib.contextmanager
def _without_its_notes() -> Iterator[None]:
    """Keep the screen clean of notes that no user can act on; whatever else is written goes to standard error."""
    loggers = [logging.getLogger(name) for name in ("IPEX", PACKAGE)]
    levels = [logger.level for logger in loggers]
    with tempfile.TemporaryFile() as notes, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            with _redirected(1, notes), _redirected(2, notes):  # C++ writes there too
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            notes.seek(0)
            for line in notes.read().decode(errors="replace").splitlines():
                if not _is_note(line):
                    print(line, file=sys.stderr)


@contextlib.contextmanager
def _redirected(descriptor: int, target: IO[bytes]) -> Iterator[None]:
    def flush() -> None:
        sys.stdout.flush()
        sys.stderr.flush()

    flush()
    screen = os.dup(descriptor)
    os.dup2(target.fileno(), descriptor)
    try:
        yield
    finally:
        flush()
        os.dup2(screen, descriptor)
        os.close(screen)


def _is_note(line: str) -> bool:
    return any(note in line for note in _NOTES) or line.strip().startswith(_DETAILS)
