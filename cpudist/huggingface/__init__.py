"""Keeps Hugging Face's accelerate and Trainer on the job's own process group and devices, whatever backend it runs on.

Left alone, accelerate (1.15) and Trainer (4.57, 5.x) would take torch_xla for a CPU job where that is installed,
train every rank alone, refuse or ignore the names "ccl", `use_ipex` and `no_cuda`, ignore `ddp_timeout`, and leave
half a checkpoint where they are killed. This package is the one place that changes them, while a job runs. One module
per part that is changed, named after it (accelerate_state.py, accelerate_loader.py, accelerate_ddp.py,
training_arguments.py, trainer.py, trainer_loss.py, trainer_checkpoints.py, trainer_resuming.py, trainer_sharing.py);
versions.py refuses versions that it was not written for. The libraries are never imported here, only changed once the
script has imported them.

It must not know environments, recipes or command lines.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from cpudist.huggingface import (
    accelerate_ddp,
    accelerate_loader,
    accelerate_state,
    trainer,
    trainer_checkpoints,
    trainer_loss,
    trainer_resuming,
    training_arguments,
)
from cpudist.on_import import after_import
from cpudist.optimization.native import own_compile_cache

if TYPE_CHECKING:
    from cpudist.job import Job

__all__ = ["install"]


def install(job: Job) -> None:
    """Until `job` ends, accelerate and Trainer work on its process group.

    Raises:
        UserError: one of them is imported already, and of a version that cpudist does not know.
    """
    # Where this is unset, accelerate divides the machine's cores by the ranks, pinned or not.
    job.changes.default_variable("OMP_NUM_THREADS", str(torch.get_num_threads()))
    job.changes.default_variable("TORCHINDUCTOR_CACHE_DIR", own_compile_cache(job.world.rank))
    masters: trainer.MastersByModel = WeakKeyDictionary()
    begun: trainer_resuming.BegunByTrainer = WeakKeyDictionary()
    weights: trainer_loss.WeightsByTrainer = WeakKeyDictionary()
    for module, patch in (
        ("accelerate.state", partial(accelerate_state.patch, job=job)),
        ("accelerate.data_loader", partial(accelerate_loader.patch, job=job)),
        ("accelerate.accelerator", partial(accelerate_ddp.patch, job=job)),
        ("transformers.training_args", partial(training_arguments.patch, job=job)),
        ("transformers.modeling_utils", partial(trainer.patch_models, job=job, masters=masters)),
        ("transformers.trainer", partial(trainer.patch, job=job, masters=masters)),
        ("transformers.trainer", partial(trainer_loss.patch, job=job, weights=weights)),
        ("transformers.trainer", partial(trainer_checkpoints.patch, job=job, begun=begun)),
        ("transformers.trainer", partial(trainer_resuming.patch, job=job, begun=begun, weights=weights)),
    ):
        job.changes.then(after_import(module, patch))
