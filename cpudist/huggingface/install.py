"""Puts the changes in place for one job, and takes them back after it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from cpudist.huggingface import arguments, loss, state, trainer
from cpudist.huggingface.on_import import after_import
from cpudist.huggingface.patch import Patches
from cpudist.optimization.native import own_compile_cache

if TYPE_CHECKING:
    from cpudist.world import World

_patches: Patches | None = None


def install(world: World) -> None:
    """From here on accelerate and Trainer join the process group of `world`, which must exist. Again: does nothing."""
    global _patches
    if _patches is not None:
        return
    _patches = patches = Patches()
    # A device without an index: moved to "cpu:0", as accelerate would, weights that IPEX has prepacked are corrupted.
    patches.variable("ACCELERATE_TORCH_DEVICE", str(world.device))
    # accelerate and transformers take torch_xla, where it is installed, before they look for a CPU.
    patches.variable("USE_TORCH_XLA", "0")
    # Where this is unset, accelerate divides the machine's cores by the ranks, pinned or not.
    if "OMP_NUM_THREADS" not in os.environ:
        patches.variable("OMP_NUM_THREADS", str(torch.get_num_threads()))
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        patches.variable("TORCHINDUCTOR_CACHE_DIR", own_compile_cache(world.rank))
    patches.then(after_import("accelerate.state", lambda module: state.patch(module, world, patches)))
    patches.then(after_import("transformers.training_args", lambda module: arguments.patch(module, world, patches)))
    patches.then(after_import("transformers.modeling_utils", lambda module: trainer.patch_models(module, patches)))
    patches.then(after_import("transformers.trainer", lambda module: trainer.patch(module, patches)))
    patches.then(after_import("transformers.trainer", lambda module: loss.patch(module, patches)))


def remove() -> None:
    """Undo `install`."""
    global _patches
    if _patches is not None:
        _patches.undo()
        _patches = None
