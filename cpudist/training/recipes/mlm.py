"""Masked language model on text: from scratch, with its own tokenizer, or from a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    default_data_collator,
)

from cpudist.errors import UserError
from cpudist.training.recipes.common import course, outcome
from cpudist.training.recipes.common.arguments import parse
from cpudist.training.recipes.common.evaluation import IGNORED, ExactTrainer, evaluate_language_model, token_losses
from cpudist.training.recipes.language import language_model, text
from cpudist.training.recipes.language.language_model import ModelArguments

# From scratch, unless --config_overrides says more; small and without dropout for clm's reasons.
_RECIPE = language_model.Recipe(
    "mlm",
    AutoModelForMaskedLM,
    "bert",
    {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    text.MASKED,
)
_SAMPLE_TOKENS = 64


@dataclass
class DataArguments(language_model.DataArguments):
    """Which text, how much of it, and how much of that to mask."""

    mlm_probability: float = field(default=0.15, metadata={"help": "The share of the tokens that is masked."})


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("mlm", __doc__ or "", types, argv)
    if not 0 < data_arguments.mlm_probability < 1:
        raise UserError("--mlm_probability must lie between 0 and 1")
    prepared = language_model.prepare(_RECIPE, model_arguments, data_arguments, arguments)
    tokenizer, evaluation = prepared.tokenizer, prepared.evaluation
    if tokenizer.mask_token is None:
        raise UserError("the tokenizer has no mask token; give one that was made for a masked language model")

    masking = Masking(tokenizer, mlm_probability=data_arguments.mlm_probability)
    trainer = ExactTrainer(
        compute_loss_func=partial(masked_loss, label_smoothing=arguments.label_smoothing_factor),
        score=masked_token_scores,
        metrics=accuracy,
        model=prepared.model,
        args=arguments,
        train_dataset=None if prepared.train is None else prepared.train.remove_columns("labels"),
        eval_dataset=None if evaluation is None else mask_once(evaluation, masking, arguments),
        processing_class=tokenizer,
        data_collator=masking,
    )
    course.run(trainer, "mlm", prepared.checkpoint, evaluate_language_model)
    if trainer.is_world_process_zero():
        blocks: Any = prepared.train if evaluation is None else evaluation
        masked = masking.with_seed(blocks[0]["input_ids"], arguments.seed, 0)
        outcome.report_sample("what the model takes masked words for", _guess(prepared.model, tokenizer, masked))


class Masking(DataCollatorForLanguageModeling):  # type: ignore[misc]
    """Makes batches, masking samples anew whenever they come, except those that were masked before and bring labels."""

    generator: torch.Generator | None

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch of `examples`."""
        masked: dict[str, Any]
        masked = default_data_collator(examples) if "labels" in examples[0] else super().torch_call(examples)
        return masked

    def with_seed(self, tokens: list[int], seed: int, index: int) -> dict[str, list[int]]:
        """One block masked as in training, but always alike for this seed and index: "input_ids" and "labels"."""
        state = np.random.SeedSequence((seed, index)).generate_state(1)
        self.generator = torch.Generator().manual_seed(int(state[0]))
        inputs, labels = self.torch_mask_tokens(torch.tensor([tokens]))
        self.generator = None
        return {"input_ids": inputs[0].tolist(), "labels": labels[0].tolist()}


def mask_once(blocks: Dataset, masking: Masking, arguments: TrainingArguments) -> Dataset:
    """`blocks` masked for evaluation: alike at every evaluation, on any number of ranks, in batches of any size."""
    key = [blocks._fingerprint, text.identity(masking.tokenizer), masking.mlm_probability, arguments.seed]
    with arguments.main_process_first(local=True, desc="masking"):
        return blocks.map(
            lambda tokens, index: masking.with_seed(tokens, arguments.seed, index),
            with_indices=True,
            input_columns="input_ids",
            new_fingerprint=Hasher.hash(key),
            desc="Masking what to evaluate on",
        )


def masked_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """This batch's part of the mean over all masked tokens of a step, on all ranks and in all accumulated batches.

    BERT's own loss is the mean over its batch; Trainer takes it for such a part and multiplies it by the ranks.
    """
    masked = labels != IGNORED
    losses = torch.nn.functional.cross_entropy(
        outputs.logits[masked].float(), labels[masked], reduction="sum", label_smoothing=label_smoothing
    )
    count = masked.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return losses / count.clamp(min=1)  # by chance, nothing may be masked


def masked_token_scores(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    labels = inputs["labels"]
    correct = outputs.logits.argmax(dim=-1) == labels  # IGNORED is no token's number
    return {**token_losses(outputs.logits, labels), "correct": correct.sum(dim=1)}


def accuracy(rows: dict[str, NDArray[Any]]) -> dict[str, float]:
    return {"accuracy": float(rows["correct"].sum() / rows["targets"].sum())}


def _guess(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, masked: dict[str, list[int]]) -> str:
    """The start of a masked block as text, and what the model takes each masked token for."""
    model.eval().to("cpu")
    with torch.no_grad():
        guesses = model(input_ids=torch.tensor([masked["input_ids"]])).logits[0].argmax(dim=-1).tolist()
    shown, answers = [], []
    for token, label, guess in list(zip(masked["input_ids"], masked["labels"], guesses, strict=True))[:_SAMPLE_TOKENS]:
        if label != IGNORED:
            # Some masked tokens stay or are replaced by others; here, all shall look alike.
            shown.append(tokenizer.mask_token_id)
            truth = "right" if guess == label else f"not {tokenizer.decode([label])!r}"
            answers.append(f"{tokenizer.decode([guess])!r} ({truth})")
        elif token not in tokenizer.all_special_ids:
            shown.append(token)
    return f"{tokenizer.decode(shown).strip()}\n{', '.join(answers)}"
