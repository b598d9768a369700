"""Keeps Hugging Face's accelerate and Trainer on the job's own process group, whatever backend it runs on.

accelerate reuses a process group that exists, but left alone it would on a CPU (1.15, state.py): take
torch_xla if that is importable; train every rank alone unless told `cpu=True`; refuse the name "ccl"; set a
number of threads that ignores how the ranks are pinned. Trainer (transformers 5) refuses `--ddp_backend ccl`
and `--bf16` without `--use_cpu`.

This is the one place that changes them, and only from `install` to `remove`: three variables that they read,
one method of accelerate and the start of TrainingArguments. A version that looks different is refused, never
left to itself.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from cpudist.errors import UserError
from cpudist.training.on_import import after_import

if TYPE_CHECKING:
    from cpudist.world import World

_PREPARE_BACKEND = ["self", "cpu", "sagemaker_dp", "backend"]

_undo = ExitStack()


def install(world: World) -> None:
    """From here on accelerate and Trainer join the process group of `world`, which must exist."""
    remove()
    # A device without an index: IPEX's prepacked weights break when the model is moved to "cpu:0".
    _set_variable("ACCELERATE_TORCH_DEVICE", str(world.device))
    _set_variable("USE_TORCH_XLA", "0")
    # Where this is unset, accelerate divides the machine's cores by the ranks, pinned or not.
    if "OMP_NUM_THREADS" not in os.environ:
        _set_variable("OMP_NUM_THREADS", str(torch.get_num_threads()))
    _undo.callback(after_import("accelerate.state", lambda module: _patch_accelerate(module, world)))
    _undo.callback(after_import("transformers.training_args", lambda module: _patch_training_arguments(module, world)))


def remove() -> None:
    """Undo `install`."""
    _undo.close()


def _patch_accelerate(state: ModuleType, world: World) -> None:
    """Let accelerate's choice of backend be the one that the job already runs on."""
    prepare_backend = getattr(state.PartialState, "_prepare_backend", None)
    known = prepare_backend and list(inspect.signature(prepare_backend).parameters) == _PREPARE_BACKEND
    multi_cpu = getattr(state.DistributedType, "MULTI_CPU", None)
    if not known or multi_cpu is None:
        raise UserError(
            f"cpudist does not know how to keep accelerate {_version('accelerate')} on {world.backend}; "
            "pip install 'accelerate<1.16'"
        )

    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return _agreed(backend, world), multi_cpu

    _set_attribute(state.PartialState, "_prepare_backend", stay)
    # accelerate gathers with a function that torch 2.13 renames; nobody who trains can do anything about it.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor.* is deprecated", FutureWarning)


def _patch_training_arguments(training_args: ModuleType, world: World) -> None:
    """Let TrainingArguments take the job's backend by name and be for the CPU without `--use_cpu`."""
    cls = training_args.TrainingArguments
    fields = cls.__dataclass_fields__
    if "use_cpu" not in fields or "choices" not in fields["ddp_backend"].metadata:
        raise UserError(
            f"cpudist does not know how to keep transformers {_version('transformers')} on {world.backend}; "
            "pip install 'transformers<6'"
        )
    metadata = dict(fields["ddp_backend"].metadata)
    metadata["choices"] = list(dict.fromkeys([*metadata["choices"], world.backend, "ccl"]))
    _set_attribute(fields["ddp_backend"], "metadata", MappingProxyType(metadata))
    original: Callable[[Any], None] = cls.__post_init__

    @functools.wraps(original)
    def for_this_job(self: Any) -> None:
        self.use_cpu = True
        _agreed(self.ddp_backend, world)
        original(self)

    _set_attribute(cls, "__post_init__", for_this_job)


def _agreed(backend: str | None, world: World) -> str:
    """The job's backend, if that is what the script asks for."""
    if backend not in (None, world.backend):
        raise UserError(
            f"the script asks for the backend {backend}, but the job runs on {world.backend}; "
            f"give cpudist-train --backend {backend}, or leave ddp_backend out"
        )
    return world.backend


def _set_variable(name: str, value: str) -> None:
    before = os.environ.get(name)
    os.environ[name] = value
    if before is None:
        _undo.callback(os.environ.pop, name, None)
    else:
        _undo.callback(os.environ.__setitem__, name, before)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    _undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)
