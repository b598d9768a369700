"""Causal language model on text: from scratch, with its own tokenizer, or from a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
)

from cpudist.training.recipes.common import course, outcome
from cpudist.training.recipes.common.arguments import parse
from cpudist.training.recipes.common.evaluation import ExactTrainer, evaluate_language_model, token_losses
from cpudist.training.recipes.language import language_model, text
from cpudist.training.recipes.language.language_model import ModelArguments

# From scratch, unless --config_overrides says more: a model that a CPU core trains in minutes.
# Without dropout, which is for data that is seen many times, and costs a core a tenth of its time.
_RECIPE = language_model.Recipe(
    "clm",
    AutoModelForCausalLM,
    "gpt2",
    {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 256,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    text.CAUSAL,
)


@dataclass
class DataArguments(language_model.DataArguments):
    """Which text, and how much of it."""

    sample_prompt: str | None = field(
        default=None,
        metadata={"help": "What the sample at the end starts with (default: a line break)."},
    )


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("clm", __doc__ or "", types, argv)
    prepared = language_model.prepare(_RECIPE, model_arguments, data_arguments, arguments)
    if prepared.model.loss_type is None:  # as for GPT-2, whose class has an unusual name; transformers would warn
        prepared.model.loss_type = "ForCausalLM"
    trainer = ExactTrainer(
        score=next_token_losses,
        model=prepared.model,
        args=arguments,
        train_dataset=prepared.train,
        eval_dataset=prepared.evaluation,
        processing_class=prepared.tokenizer,
        data_collator=default_data_collator,
    )
    course.run(trainer, "clm", prepared.checkpoint, evaluate_language_model)
    if trainer.is_world_process_zero():
        sample = _write_sample(prepared.model, prepared.tokenizer, data_arguments.sample_prompt)
        outcome.report_sample("what the model writes", sample)


def next_token_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return token_losses(outputs.logits[:, :-1], inputs["labels"][:, 1:])


def _write_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str | None) -> str:
    """A few dozen tokens that the model writes, the same at every run with the same weights."""
    torch.manual_seed(0)
    ids = tokenizer(prompt or "\n", return_tensors="pt").input_ids
    room = getattr(model.config, "max_position_embeddings", None) or ids.shape[1] + 64
    model.eval().to("cpu")  # every length would be compiled for another device
    written = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max(1, min(64, room - ids.shape[1])),
        do_sample=True,
        temperature=0.7,
        top_k=40,
        pad_token_id=tokenizer.eos_token_id,
    )
    decoded: str = tokenizer.decode(written[0], skip_special_tokens=True)
    return decoded.strip()
