"""Trainer: what `--use_ipex` asks for happens between making the optimizer and wrapping the model in DDP.

With `--bf16` as well the model trains with bfloat16 parameters and float32 master weights. These are what its state
holds and what is saved, so the configuration beside them has to say float32, as that of any other run.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from cpudist import optimization
from cpudist.huggingface.patch import Patches, check_known

_WRAP_MODEL = ["self", "model", "training", "dataloader"]
_SAVE_PRETRAINED = ["self", "save_directory", "is_main_process"]

# The models that are being trained with master weights.
_masters: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def patch(trainer_module: ModuleType, patches: Patches) -> None:
    """Change `transformers.Trainer`. `_wrap_model` is where the optimizer exists, also one that the script brought."""
    cls = trainer_module.Trainer
    original: Any = getattr(cls, "_wrap_model", None)
    known = original is not None and list(inspect.signature(original).parameters) == _WRAP_MODEL
    check_known(trainer_module, range(4, 6), known, "transformers>=4.57.6,<6")
    seen: WeakSet[Any] = WeakSet()

    @functools.wraps(original)
    def wrap_model(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if training and self.optimizer is not None and self not in seen:
            seen.add(self)
            _optimize(self)
        return original(self, model, training, dataloader)

    patches.attribute(cls, "_wrap_model", wrap_model)


def patch_models(modeling_utils: ModuleType, patches: Patches) -> None:
    """Change `transformers.PreTrainedModel`: with master weights, the configuration is saved as one of float32."""
    cls = modeling_utils.PreTrainedModel
    original: Any = getattr(cls, "save_pretrained", None)
    known = original is not None and list(inspect.signature(original).parameters)[:3] == _SAVE_PRETRAINED
    check_known(modeling_utils, range(4, 6), known, "transformers>=4.57.6,<6")

    @functools.wraps(original)
    def save_pretrained(self: Any, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> Any:
        result = original(self, save_directory, is_main_process, *args, **kwargs)
        if self in _masters and is_main_process:
            self.config.dtype = "float32"
            self.config.save_pretrained(save_directory)
        return result

    patches.attribute(cls, "save_pretrained", save_pretrained)


def _optimize(trainer: Any) -> None:
    if trainer.model in _masters:  # by an earlier Trainer: this one has another optimizer
        _masters[trainer.model].hand_over(trainer.optimizer)
        return
    args = trainer.args
    flags = {"use_ipex": args.use_ipex, "bf16": args.bf16, "compiled": args.torch_compile}
    masters = optimization.in_trainer(trainer.model, trainer.optimizer, **flags)
    if masters is not None:
        _masters[trainer.model] = masters
