"""accelerate's DDP: the run record says how it reduces gradients; what is wrapped already is refused."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cpudist.backends.sharded import ShardedDataParallel
from cpudist.errors import UserError
from cpudist.huggingface.versions import ACCELERATE, check_known
from cpudist.job.gradients import note_at_first_use

if TYPE_CHECKING:
    from cpudist.job import Job

_PREPARE_MODEL = ["self", "model", "device_placement", "evaluation_mode"]


def patch(accelerator: ModuleType, job: Job) -> None:
    """Change `accelerate.Accelerator`, whose `prepare_model` wraps models, those of Trainer too."""
    cls = accelerator.Accelerator
    original: Any = getattr(cls, "prepare_model", None)
    known = original is not None and list(inspect.signature(original).parameters) == _PREPARE_MODEL
    check_known(accelerator, known, ACCELERATE)

    @functools.wraps(original)
    def prepare_model(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(model, ShardedDataParallel):
            raise UserError(
                "accelerate and Trainer wrap models themselves: give them the model without cpudist.wrap(); "
                "shard_optimizer=True is for training loops without them"
            )
        prepared = original(self, model, *args, **kwargs)
        note_at_first_use(prepared, job.record)
        return prepared

    job.changes.attribute(cls, "prepare_model", prepare_model)
