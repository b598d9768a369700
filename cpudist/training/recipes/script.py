"""What every recipe does around its data: options, models, a Trainer with exact evaluations, a run and its results."""

from __future__ import annotations

from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    AutoTokenizer,
    EvalPrediction,
    HfArgumentParser,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.hf_argparser import HfArg

from cpudist.errors import UserError
from cpudist.job import current
from cpudist.training import curve
from cpudist.training.recipes import resuming
from cpudist.training.recipes.data import DataArguments, needs_fixed_shapes

IGNORED = -100  # the label that means "no target here"


@dataclass
class ModelArguments:
    """Which pretrained model and tokenizer to start from."""

    model_name_or_path: str = HfArg(help="Pretrained model: a folder or a hub name.")
    tokenizer_name: str | None = HfArg(default=None, help="Tokenizer, if not the model's: a folder or a hub name.")


@dataclass
class NewModelArguments:
    """Which model to start from, a pretrained or a new one."""

    model_name_or_path: str | None = HfArg(
        default=None, help="Pretrained model: a folder or a hub name. Without it, a new one is made."
    )
    config_overrides: str | None = HfArg(
        default=None, help="Changes of a new model's configuration: NAME=VALUE,NAME=VALUE."
    )


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Leaves the description, a recipe's docstring, as it is: it holds commands."""


class _Parser(HfArgumentParser):  # type: ignore[misc]
    """Reports wrong options as a `UserError`, so that rank 0 alone shows it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def parse(recipe: str, description: str | None, types: Sequence[type], argv: list[str]) -> tuple[Any, ...]:
    """One object of each of `types`, which are dataclasses, from `argv`: options, or the name of a JSON or YAML file.

    Raises `UserError` for an unknown option and for a wrong value.
    """
    parser = _Parser(types, prog=f"cpudist-train {recipe}", description=description, formatter_class=_Formatter)
    suffix = Path(argv[0]).suffix if len(argv) == 1 else ""
    try:
        if suffix == ".json":
            return tuple(parser.parse_json_file(argv[0]))
        if suffix in (".yaml", ".yml"):
            return tuple(parser.parse_yaml_file(argv[0]))
        *filled, unknown = parser.parse_args_into_dataclasses(
            argv, return_remaining_strings=True, look_for_args_file=False
        )
    except (ValueError, TypeError, OSError) as error:
        # What the dataclasses find wrong with their values (TrainingArguments checks a lot), or a bad file.
        raise UserError(f"{recipe}: {' '.join(str(error).split())}") from error
    if unknown:
        raise UserError(
            f"{parser.prog} does not know {' '.join(unknown)}; --help lists its options, "
            "those of cpudist-train itself come before the recipe's name"
        )
    return tuple(filled)


def start(options: DataArguments, arguments: TrainingArguments) -> str | None:
    """Check the options, begin the run record, and return the checkpoint to resume from, None for a fresh start.

    The record lies in the output folder unless the user named a file. Raises `UserError` if there is nothing to do, or
    no data to do it with, or if checkpoints are missing or would be overwritten.
    """
    if not (arguments.do_train or arguments.do_eval):
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    options.check(arguments)
    checkpoint = resuming.checkpoint_to_resume(arguments)
    if arguments.ddp_find_unused_parameters is None:  # Trainer would look for them in every step, in vain
        arguments.ddp_find_unused_parameters = False
    job = current()
    if job is not None:
        job.record.default_path(Path(arguments.output_dir) / "cpudist.json")
    return checkpoint


def load_pretrained(auto_class: Any, name: str, **kwargs: Any) -> Any:
    """``auto_class.from_pretrained(name, **kwargs)``; raises `UserError` with the reason if that fails."""
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load {name}: {str(error).strip().splitlines()[0]}") from error


def load_tokenizer(*names: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of the first of `names` that is given: --tokenizer_name, the checkpoint, the pretrained model."""
    return load_pretrained(AutoTokenizer, next(name for name in names if name is not None))


def load_model(auto_class: Any, name: str, arguments: TrainingArguments, **kwargs: Any) -> PreTrainedModel:
    """The pretrained model `name`; weights that it lacks, such as those of a new head, are drawn by the seed."""
    set_seed(arguments.seed)  # now: they must be the same on every rank, and only some ranks have prepared data
    # float32 whatever the file holds: these are the weights that the optimizer changes.
    return load_pretrained(auto_class, name, dtype=torch.float32, **kwargs)


def new_model(
    auto_class: Any, config: PretrainedConfig, overrides: str | None, arguments: TrainingArguments
) -> PreTrainedModel:
    """A model of `config` with --config_overrides, its weights drawn by the seed; `UserError` if it cannot be made."""
    set_seed(arguments.seed)
    try:
        if overrides:
            config.update_from_string(overrides)
        return auto_class.from_config(config)
    except ValueError as error:
        given = f" with --config_overrides {overrides}" if overrides else ""
        raise UserError(f"cannot make a {config.model_type}{given}: {' '.join(str(error).split())}") from error


class ExactTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose evaluations are the same on any number of ranks; eval_loss is the mean over all targets.

    Trainer averages the losses of batches. The last batch is smaller, and with several ranks it is filled up with
    repeated samples. Here every sample counts once, by its own losses and the number of its targets.

    Args:
        score: what an evaluation keeps of a batch, from the model's outputs and inputs (labels among them): tensors
            with one row per sample, under "loss" the sum of its losses, shape (batch,), under "targets" their number,
            shape (batch,), under other names whatever `metrics` reads.
        metrics: from the rows of all samples, in the order of the data, to named metrics, eval_NAME in the results.
        kwargs: Trainer's own.
    """

    def __init__(
        self,
        *,
        score: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]],
        metrics: Callable[[dict[str, NDArray[Any]]], dict[str, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs, compute_metrics=self._compute_metrics)
        self._score = score
        self._metrics = metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[None, dict[str, Tensor], Tensor]:
        """One batch's rows and targets, where Trainer expects logits and labels."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            rows = self._score(model(**inputs), inputs)
        return None, rows, rows["targets"]

    def _compute_metrics(self, gathered: EvalPrediction) -> dict[str, float]:
        rows = gathered.predictions
        loss = float(rows["loss"].astype(np.float64).sum() / rows["targets"].sum())
        return {"loss": loss, **(self._metrics(rows) if self._metrics else {})}


def mean_loss(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """For Trainer's `compute_loss_func`: this batch's part of a step's mean cross entropy over all targets.

    Not the model's own loss: transformers tells models how many targets a step has on all ranks and in all accumulated
    batches, but many (BERT among them) return the mean over their batch all the same. Trainer takes that for such a
    part and multiplies it by the number of ranks.

    Args:
        outputs: with logits, shape (batch, classes) or (batch, tokens, classes).
        labels: shape (batch,) or (batch, tokens); IGNORED is no target.
        num_items_in_batch: the targets of the step; by default those of this batch.
    """
    targets = labels != IGNORED
    if needs_fixed_shapes():
        logits, wanted = outputs.logits.flatten(0, -2), labels.flatten()
    else:  # the logits that count, which may be few
        logits, wanted = outputs.logits[targets], labels[targets]
    losses = torch.nn.functional.cross_entropy(
        logits.float(), wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing
    )
    count = targets.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return losses / count.clamp(min=1)  # by chance, nothing may be masked


def run(
    trainer: Trainer,
    recipe: str,
    checkpoint: str | None,
    samples: str,
    tokens_per_sample: int | None = None,
    evaluate: Callable[[Trainer], dict[str, float]] = Trainer.evaluate,
) -> None:
    """Do what --do_train and --do_eval ask for; leave the model, metrics, the loss curve and the run record behind.

    Args:
        checkpoint: the folder of the checkpoint to resume from.
        samples: what the samples are called on screen, such as "blocks of 64 tokens".
        tokens_per_sample: for the run record; None where samples have different lengths.
        evaluate: returns the metrics to report.
    """
    job = current()
    if job is not None:
        job.record.tokens_per_sample = tokens_per_sample
    if trainer.is_world_process_zero():
        parameters, count = trainer.model.num_parameters(), len(trainer.train_dataset or ())
        print(f"{recipe}: {parameters:,} parameters, {count:,} {samples} to train on", flush=True)
    if trainer.args.do_train:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
        trainer.save_model()
        trainer.save_state()
        _report(trainer, "train", metrics)
    if trainer.args.do_eval:
        _report(trainer, "eval", evaluate(trainer))
    if trainer.args.do_train and trainer.is_world_process_zero():
        path = Path(trainer.args.output_dir) / "loss.png"
        where = f": {job.world.size} ranks, {job.world.backend}" if job is not None else ""
        if curve.draw(trainer.state.log_history, path, f"{recipe}{where}"):
            add_results({"curve": str(path)})


def _report(trainer: Trainer, split: str, metrics: dict[str, float]) -> None:
    """Print the metrics of "train" or "eval" and save them in the output folder and the run record."""
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
    add_results({split: metrics})


def add_first_and_last(trainer: Trainer, name: str, of: Callable[[dict[str, float]], float]) -> None:
    """Put a measure of the first and of the last evaluation into the run record; `of` takes it from the metrics."""
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    add_results({name: {"first": of(evaluations[0]), "last": of(evaluations[-1])}})


def report_sample(what: str, sample: str) -> None:
    """Print a sample of what a trained model does, and put it into the run record; for rank 0 alone."""
    add_results({"sample": sample})
    print(f"a sample of {what}:\n{sample}", flush=True)


def add_results(results: dict[str, Any]) -> None:
    """Put what only this recipe knows into the run record."""
    job = current()
    if job is not None:
        job.record.results.update(results)
