"""Extractive question answering on SQuAD (version 1 or 2) or data like it, from a pretrained model.

Evaluations report what the official evaluation scripts of SQuAD define, in percent: eval_exact_match, the share of
questions whose answer is one of the true ones, and eval_f1, the mean overlap with the best of them in words; for data
with unanswerable questions also both among the answerable and the unanswerable ones (eval_HasAns_..., eval_NoAns_...).
The answers are left in OUTPUT_DIR/eval_predictions.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from cpudist.errors import UserError
from cpudist.training.recipes.common import course, models, outcome, shapes, sources
from cpudist.training.recipes.common.arguments import check_training_arguments, checkpoint_to_resume, parse
from cpudist.training.recipes.common.evaluation import ExactTrainer
from cpudist.training.recipes.questions import squad
from cpudist.training.recipes.questions.spans import Cutter, Judge, Search
from cpudist.training.recipes.questions.squad import Question

PREDICTIONS = "eval_predictions.json"


@dataclass
class ModelArguments:
    """Which model and tokenizer."""

    model_name_or_path: str = field(metadata={"help": "Pretrained model to go on from: a folder or a hub name."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Tokenizer: a folder or a hub name. Without it the model's."}
    )


@dataclass
class DataArguments:
    """Which questions, and how they are cut and answered."""

    train_file: str | None = field(default=None, metadata={"help": "Questions to train on: JSON as SQuAD's."})
    validation_file: str | None = field(default=None, metadata={"help": "Questions to evaluate on: JSON as SQuAD's."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "Instead of files: a data set on the hub, or a folder, with SQuAD's columns."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Which configuration of the data set."})
    validation_split_percentage: int | None = field(
        default=None,
        metadata={
            "help": "Without anything to evaluate on: how many of the training contexts to hold out, with all their "
            "questions (default 5)."
        },
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on that many questions at most."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on that many questions at most."})
    max_seq_length: int = field(
        default=384, metadata={"help": "Tokens of a window: a question and as much of its context as fits."}
    )
    doc_stride: int = field(
        default=128, metadata={"help": "Tokens that two neighbouring windows of a long context have in common."}
    )
    pad_to_max_length: bool = field(
        default=False,
        metadata={"help": "Pad all training batches to max_seq_length, instead of each to its longest window."},
    )
    version_2_with_negative: bool | None = field(
        default=None,
        metadata={
            "help": "Whether questions may have no answer (default: whether one of those read has none).",
            "nargs": "?",  # also without a value, as run_qa.py has it
            "const": True,
        },
    )
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={"help": "How much better than the best span no answer must be to be given, in logits."},
    )
    n_best_size: int = field(
        default=20, metadata={"help": "Starts and ends of answers to consider in each window, the best ones."}
    )
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of an answer at most."})


def main(argv: list[str]) -> None:
    """Run the recipe with the options `argv`."""
    types = (ModelArguments, DataArguments, TrainingArguments)
    model_arguments, data_arguments, arguments = parse("qa", __doc__ or "", types, argv)
    check_training_arguments(arguments)
    _check_data_arguments(data_arguments, arguments)
    checkpoint = checkpoint_to_resume(arguments)
    outcome.start_record(arguments.output_dir)
    set_seed(arguments.seed)

    train_questions, questions = _questions(data_arguments, arguments)
    search = _search(data_arguments, [*train_questions, *questions])
    tokenizer = _tokenizer(model_arguments.tokenizer_name or checkpoint or model_arguments.model_name_or_path)
    # In fp32 whatever the file holds: these are the weights that the optimizer changes.
    model = models.load(AutoModelForQuestionAnswering, model_arguments.model_name_or_path, dtype=torch.float32)
    cutter = Cutter(tokenizer, _window_length(data_arguments, tokenizer, model), data_arguments.doc_stride)
    pad = data_arguments.pad_to_max_length
    train = cutter.cut(train_questions, pad, arguments) if train_questions else None
    # Always to the full length: shapes must not depend on which windows meet in a batch, so on the number of ranks.
    windows = cutter.cut(questions, True, arguments) if questions else None
    outcome.start_record(arguments.output_dir, tokens_per_sample=cutter.max_length if pad else None)

    judge = Judge(questions, windows, search)
    trainer = ExactTrainer(
        score=window_losses,
        metrics=judge,
        model=model,
        args=arguments,
        train_dataset=train,
        eval_dataset=windows,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer, pad_to_multiple_of=shapes.padding(cutter.max_length)),
    )
    if trainer.is_world_process_zero():
        samples = f"{len(train) if train else 0} windows of up to {cutter.max_length} tokens to train on"
        print(f"qa: {model.num_parameters():,} parameters, {samples}", flush=True)
    course.run(trainer, "qa", checkpoint)
    if trainer.is_world_process_zero() and judge.predictions:
        _leave_answers(trainer, judge)


def window_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows for `ExactTrainer`: each window is one target, its loss the mean of those of its start and its end."""
    logits = {"start": outputs.start_logits.float(), "end": outputs.end_logits.float()}
    start, end = (
        torch.nn.functional.cross_entropy(logits[name], inputs[f"{name}_positions"], reduction="none")
        for name in ("start", "end")
    )
    rows = {"loss": (start + end) / 2, "targets": torch.ones_like(inputs["start_positions"])}
    return {**rows, "start_logits": logits["start"], "end_logits": logits["end"]}


def _check_data_arguments(data: DataArguments, arguments: TrainingArguments) -> None:
    if data.dataset_name and (data.train_file or data.validation_file):
        raise UserError("--dataset_name and files exclude each other; give one of them")
    if arguments.do_train and not (data.train_file or data.dataset_name):
        raise UserError("--do_train needs --train_file or --dataset_name")
    if arguments.do_eval and not (data.validation_file or data.train_file or data.dataset_name):
        raise UserError("--do_eval needs --validation_file, --dataset_name, or --train_file to hold a part of it out")
    if not 0 <= data.doc_stride < data.max_seq_length:
        raise UserError("--doc_stride must be 0 or more and less than --max_seq_length")
    for name in ("max_train_samples", "max_eval_samples", "n_best_size", "max_answer_length"):
        value = getattr(data, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} must be 1 or more")


def _questions(data: DataArguments, arguments: TrainingArguments) -> tuple[list[Question], list[Question]]:
    """The questions to train and to evaluate on."""
    if data.dataset_name:
        train, evaluation = _from_data_set(data, arguments)
    else:
        train = squad.read(data.train_file) if data.train_file else []
        evaluation = squad.read(data.validation_file) if data.validation_file and arguments.do_eval else []
    if arguments.do_eval and not evaluation:
        train, evaluation = _hold_out(train, data.validation_split_percentage, arguments)
    return train[: data.max_train_samples] if arguments.do_train else [], evaluation[: data.max_eval_samples]


def _from_data_set(data: DataArguments, arguments: TrainingArguments) -> tuple[list[Question], list[Question]]:
    """The questions of the splits "train" and, if it is there and wanted, "validation"."""
    name = data.dataset_name or ""
    splits = sources.load(arguments, name, name=data.dataset_config_name)
    if "train" not in splits and (arguments.do_train or "validation" not in splits):
        raise UserError(f"{name} has no split train, but {', '.join(splits)}")
    evaluation = squad.from_rows(splits["validation"], name) if arguments.do_eval and "validation" in splits else []
    # What is not trained on is of use only to hold a part of it out.
    train = squad.from_rows(splits["train"], name) if arguments.do_train or not evaluation else []
    return train, evaluation


def _hold_out(
    questions: list[Question], percentage: int | None, arguments: TrainingArguments
) -> tuple[list[Question], list[Question]]:
    """Two parts without a common context: the answers in one that was trained on would be half known."""
    contexts = Dataset.from_dict({"context": list(dict.fromkeys(question.context for question in questions))})
    held_out = set(sources.hold_out(contexts, percentage, arguments)[1]["context"])
    train = [question for question in questions if question.context not in held_out]
    return train, [question for question in questions if question.context in held_out]


def _search(data: DataArguments, questions: Sequence[Question]) -> Search:
    unanswerable = next((question.id for question in questions if not question.answers), None)
    version_2 = data.version_2_with_negative
    if version_2 is False and unanswerable is not None:
        raise UserError(f"question {unanswerable} has no answer; leave --version_2_with_negative false out")
    if version_2 is None:
        version_2 = unanswerable is not None
    threshold = data.null_score_diff_threshold if version_2 else None
    return Search(data.n_best_size, data.max_answer_length, threshold)


def _tokenizer(name: str) -> PreTrainedTokenizerBase:
    # A checkpoint's model knows only the tokenizer that it was trained with.
    tokenizer = models.load(AutoTokenizer, name)
    if not tokenizer.is_fast:
        raise UserError(f"the tokenizer of {name} is not a fast one, which alone says where in a text its tokens are")
    if tokenizer.pad_token is None:
        raise UserError(f"the tokenizer of {name} has no token to pad with; give another one by --tokenizer_name")
    return tokenizer


def _window_length(data: DataArguments, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    """--max_seq_length, or what the model takes if that is less."""
    lengths = [data.max_seq_length, tokenizer.model_max_length]
    lengths += [getattr(model.config, "max_position_embeddings", None) or 0]  # relative positions: none, 0 or -1
    return int(min(length for length in lengths if length > 0))


def _leave_answers(trainer: Trainer, judge: Judge) -> None:
    path = Path(trainer.args.output_dir) / PREDICTIONS
    path.write_text(json.dumps(judge.predictions, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sample = judge.sample()
    outcome.add_results({"sample": sample})
    print(f"some questions of the evaluation:\n{sample}", flush=True)
