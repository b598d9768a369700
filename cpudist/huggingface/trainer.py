"""Trainer: what `--use_ipex` asks for happens between making the optimizer and wrapping the model in DDP."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any
from weakref import WeakSet

from cpudist import optimization
from cpudist.huggingface.patch import Patches, check_known

_WRAP_MODEL = ["self", "model", "training", "dataloader"]


def patch(trainer_module: ModuleType, patches: Patches) -> None:
    """Change `transformers.Trainer`. `_wrap_model` is where the optimizer exists, also one that the script brought."""
    cls = trainer_module.Trainer
    original: Any = getattr(cls, "_wrap_model", None)
    known = original is not None and list(inspect.signature(original).parameters) == _WRAP_MODEL
    check_known(trainer_module, range(4, 6), known, "transformers>=4.57.6,<6")
    optimized: WeakSet[Any] = WeakSet()

    @functools.wraps(cls._wrap_model)
    def wrap_model(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if training and self.optimizer is not None and self.model not in optimized:
            optimized.add(self.model)
            optimization.in_trainer(self.model, self.optimizer, use_ipex=self.args.use_ipex, bf16=self.args.bf16)
        return original(self, model, training, dataloader)

    patches.attribute(cls, "_wrap_model", wrap_model)
