"""Trainer: what `--use_ipex` asks for happens between making the optimizer and wrapping the model in DDP.

With `--bf16` as well the model trains with bfloat16 parameters and float32 master weights. These are what its state
holds and what is saved, so the configuration beside them has to say float32, as that of any other run.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

import torch

from cpudist.huggingface.versions import TRANSFORMERS, check_known
from cpudist.optimization import choice, master_weights
from cpudist.optimization.master_weights import MasterWeights

if TYPE_CHECKING:
    from cpudist.job import Job

_WRAP_MODEL = ["self", "model", "training", "dataloader"]
_SAVE_PRETRAINED = ["self", "save_directory", "is_main_process"]

# The models that are being trained with master weights.
MastersByModel: TypeAlias = "WeakKeyDictionary[Any, MasterWeights]"


def patch(trainer_module: ModuleType, job: Job, masters: MastersByModel) -> None:
    """Change `transformers.Trainer`. `_wrap_model` is where the optimizer exists, also one that the script brought."""
    cls = trainer_module.Trainer
    original: Any = getattr(cls, "_wrap_model", None)
    known = original is not None and list(inspect.signature(original).parameters) == _WRAP_MODEL
    check_known(trainer_module, known, TRANSFORMERS)
    seen: WeakSet[Any] = WeakSet()

    @functools.wraps(original)
    def wrap_model(self: Any, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        if training and self.optimizer is not None and self not in seen:
            seen.add(self)
            job.backend.prepare(self.model)
            _optimize(self, masters)
        result = original(self, model, training, dataloader)
        if (handler := self.accelerator.ddp_handler) is not None:  # what accelerate will give to DDP
            handler.gradient_as_bucket_view = job.backend.ddp_options().get("gradient_as_bucket_view", False)
        return result

    job.changes.attribute(cls, "_wrap_model", wrap_model)


def patch_models(modeling_utils: ModuleType, job: Job, masters: MastersByModel) -> None:
    """Change `transformers.PreTrainedModel`: with master weights, the configuration is saved as one of float32."""
    cls = modeling_utils.PreTrainedModel
    original: Any = getattr(cls, "save_pretrained", None)
    known = original is not None and list(inspect.signature(original).parameters)[:3] == _SAVE_PRETRAINED
    check_known(modeling_utils, known, TRANSFORMERS)

    @functools.wraps(original)
    def save_pretrained(self: Any, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> Any:
        result = original(self, save_directory, is_main_process, *args, **kwargs)
        if self in masters and is_main_process:
            self.config.dtype = "float32"
            self.config.save_pretrained(save_directory)
        return result

    job.changes.attribute(cls, "save_pretrained", save_pretrained)


def _optimize(trainer: Any, masters: MastersByModel) -> None:
    """What `--use_ipex` asks for; without it this only notes for the run record what Trainer does by itself."""
    model, optimizer, args = trainer.model, trainer.optimizer, trainer.args
    if model in masters:  # by an earlier Trainer: this one has another optimizer
        masters[model].hand_over(optimizer)
        return
    if args.torch_compile:
        choice.check_compiling()
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    autocast = [choice.autocast_in(dtype)] if args.bf16 or args.fp16 else []
    if args.fp16:
        autocast += choice.skip_on_device(optimizer)
    if not args.use_ipex:
        fused = any(group.get("fused") for group in optimizer.param_groups)
        choice.note(["native", *([choice.fused_name(optimizer)] if fused else []), *autocast])
        return
    no_ipex = choice.why_not_ipex(args.torch_compile)
    chosen = choice.apply_kernels(model, optimizer, no_ipex)
    if (
        args.bf16 and choice.fits("master_weights") and not hasattr(model, "peft_config")
    ):  # adapters are loaded past the model's state
        masters[model] = master_weights.keep(model, optimizer)
        chosen.append(choice.MASTER_WEIGHTS)
    chosen += autocast
    choice.note(chosen)
    warning = f"warning: --use_ipex: {no_ipex}; going on with " if no_ipex else ""
    choice.announce(chosen, dtype, no_ipex, warning=warning)
