"""Apply Intel's extension for PyTorch, if it is installed and made for this torch.

Weights are not prepacked: this gains nothing (docs/performance.md), and accelerate moves models to "cpu:0", which
corrupts prepacked weights without an error. Weights are not converted, because precision.py sets the number format. The
optimizer is not fused by the extension, because PyTorch's fused optimizers are as fast.

Loading the extension replaces kernels of torch until the process ends. Such a process must not compile models
(`check_not_loaded`).
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from cpudist.backends.process_group import CPU_ONLY
from cpudist.errors import UserError
from cpudist.patching.undo import Changes

PACKAGE = "intel_extension_for_pytorch"

_NOT_COMPILED = "with Intel's extension loaded, compiled models get no gradients below a layer norm"


def missing(compiled: bool = False) -> str | None:
    """Return why Intel's extension cannot be used here, for a model that is `compiled` or not; None if it can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        found = ""
    if not found and torch.__version__.startswith("2.8."):
        return f"{PACKAGE} is not installed (pip install {PACKAGE}==2.8.0)"
    if not found:
        return f"there is no {PACKAGE} for torch {torch.__version__}, its last release is for torch 2.8"
    if found.split(".")[:2] != torch.__version__.split(".")[:2]:
        return f"{PACKAGE} {found} is not for torch {torch.__version__}"
    return _NOT_COMPILED if compiled else None


def check_not_loaded() -> None:
    """Raise UserError if this process has loaded Intel's extension; called before a model is compiled.

    Release 2.8 replaces torch's layer norm by a kernel without a gradient. Eager code gets the gradient another
    way. In a compiled model, the parameters below a layer norm get no gradient, without an error.
    """
    if PACKAGE in sys.modules:
        raise UserError(f"{PACKAGE} is loaded: {_NOT_COMPILED}; compile in a process without it")


def apply(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Optimize `model` in place. Call this before DDP, because it may replace layers, such as LSTMs.

    Source: ``intel_extension_for_pytorch.optimize``, release 2.8.
    """
    # torch 2.8 warns about how the extension registers layer norm; the gradients are right (tests/optimization).
    warnings.filterwarnings("ignore", "aten::layer_norm: an autograd kernel was not registered", UserWarning)
    with _quiet(), Changes() as changes:
        for name, value in CPU_ONLY.items():  # accelerate reads these; the extension imports it
            changes.default_variable(name, value)
        extension: Any = __import__(PACKAGE)  # replaces kernels of torch
        # Not undone at the job's end: the kernels stay, and compiled models would be wrong (check_not_loaded).
        torch.compiler.set_stance("force_eager")
        if optimizer is None:  # without one, the extension would fold layers and so change the weights that are saved
            return
        modes = {module: module.training for module in model.modules()}
        model.train()  # the extension reads the mode, and pretrained models are in eval mode
        try:
            extension.optimize(
                model,
                optimizer=optimizer,
                dtype=torch.float32,  # does not convert the weights
                inplace=True,
                weights_prepack=False,
                split_master_weight_for_bf16=False,
                fuse_update_step=False,
            )
        finally:
            for module in model.modules():
                module.training = modes.get(module, modes[model])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the extension's output from Python and C++, because it does not help users. Errors are still raised."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    screens, nowhere = {number: os.dup(number) for number in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    for number in screens:
        os.dup2(nowhere, number)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for number, screen in screens.items():
            os.dup2(screen, number)
            os.close(screen)
        os.close(nowhere)
