"""accelerate's PartialState: its choice of a backend is the one that the job already runs on."""

from __future__ import annotations

import inspect
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cpudist.errors import UserError
from cpudist.huggingface.patch import Patches, check_known

if TYPE_CHECKING:
    from cpudist.world import World

_PREPARE_BACKEND = ["self", "cpu", "sagemaker_dp", "backend"]


def patch(state: ModuleType, world: World, patches: Patches) -> None:
    """Change `accelerate.state`: an initialised process group is reused as it is, under its own name."""
    prepare_backend = getattr(state.PartialState, "_prepare_backend", None)
    multi_cpu = getattr(state.DistributedType, "MULTI_CPU", None)
    known = prepare_backend is not None and list(inspect.signature(prepare_backend).parameters) == _PREPARE_BACKEND
    check_known(state, range(1, 2), known and multi_cpu is not None, "accelerate>=1.15,<2")

    def stay(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, Any]:
        return agreed(backend, world), multi_cpu

    patches.attribute(state.PartialState, "_prepare_backend", stay)
    # accelerate gathers with a function that torch 2.13 renames; nobody who trains can do anything about it.
    warnings.filterwarnings("ignore", ".*all_gather_into_tensor.* is deprecated", FutureWarning)


def agreed(backend: str | None, world: World) -> str:
    """The job's backend, if that is what the script asks for.

    Raises:
        UserError: the script asks for another one.
    """
    if backend not in (None, world.backend):
        raise UserError(
            f"the script asks for the backend {backend}, but the job runs on {world.backend}; "
            f"give cpudist-train --backend {backend}, or leave ddp_backend out"
        )
    return world.backend
