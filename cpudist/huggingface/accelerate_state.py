"""accelerate's PartialState: its choice of a backend is the one that the job already runs on."""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cpudist.huggingface.versions import ACCELERATE, check_known

if TYPE_CHECKING:
    from cpudist.job import Job

_PREPARE_BACKEND = ["self", "cpu", "sagemaker_dp", "backend"]


def patch(state: ModuleType, job: Job) -> None:
    """Change `accelerate.state`: an initialised process group for the CPU is reused as it is, under its own name."""
    if job.world.device_type != "cpu":  # accelerate finds other devices by itself
        return
    prepare_backend = getattr(state.PartialState, "_prepare_backend", None)
    multi_cpu = getattr(state.DistributedType, "MULTI_CPU", None)
    known = prepare_backend is not None and list(inspect.signature(prepare_backend).parameters) == _PREPARE_BACKEND
    check_known(state, known and multi_cpu is not None, ACCELERATE)

    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return job.check_backend(backend), multi_cpu

    job.changes.attribute(state.PartialState, "_prepare_backend", stay)
    # accelerate gathers with a function that torch 2.13 renames; nobody who trains can do anything about it.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor.* is deprecated", FutureWarning)
