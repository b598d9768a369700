"""What a recipe does before and after its data is there: options, pretrained models, training, evaluation, results."""

from __future__ import annotations

import os
from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import (
    AutoTokenizer,
    HfArgumentParser,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.hf_argparser import HfArg
from transformers.trainer_utils import get_last_checkpoint

from cpudist.errors import UserError
from cpudist.job import current
from cpudist.training import curve
from cpudist.training.recipes.data import DataArguments

# Options.


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


def start(data: DataArguments, arguments: TrainingArguments) -> str | None:
    """Check the options, begin the run record, and return the checkpoint to resume from, None for a fresh start.

    The record lies in the output folder unless the user named a file. Raises `UserError` for contradicting options.
    """
    check_training_arguments(arguments)
    data.check(arguments)
    checkpoint = checkpoint_to_resume(arguments)
    job = current()
    if job is not None:
        job.record.default_path(Path(arguments.output_dir) / "cpudist.json")
    return checkpoint


def check_training_arguments(arguments: TrainingArguments) -> None:
    """Raise `UserError` if there is nothing to do, or if checkpoints would be overwritten; set common defaults."""
    if not (arguments.do_train or arguments.do_eval):
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    if arguments.do_train and arguments.resume_from_checkpoint is None and _last_checkpoint(arguments):
        raise UserError(
            f"{arguments.output_dir} holds checkpoints of an earlier run: go on from them with "
            "--resume_from_checkpoint last, or give another --output_dir"
        )
    if arguments.ddp_find_unused_parameters is None:  # Trainer would look for them in every step, in vain
        arguments.ddp_find_unused_parameters = False


def checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """The checkpoint that --resume_from_checkpoint means: a folder, or for "last" ("true") the newest one.

    Raises `UserError` if it is not there.
    """
    wanted = arguments.resume_from_checkpoint
    if wanted is None or str(wanted).lower() == "false":
        return None
    if str(wanted).lower() in ("last", "true"):
        last = _last_checkpoint(arguments)
        if last is None:
            raise UserError(f"there is no checkpoint in {arguments.output_dir}; leave --resume_from_checkpoint out")
        return last
    if not os.path.isdir(wanted):
        raise UserError(f"there is no checkpoint {wanted}; --resume_from_checkpoint takes its folder, or last")
    return str(wanted)


def _last_checkpoint(arguments: TrainingArguments) -> str | None:
    if not os.path.isdir(arguments.output_dir):
        return None
    checkpoint: str | None = get_last_checkpoint(arguments.output_dir)
    return checkpoint


# Models.


def load_pretrained(auto_class: Any, name: str, **kwargs: Any) -> Any:
    """``auto_class.from_pretrained(name, **kwargs)``; raises `UserError` with the reason if that fails."""
    try:
        return auto_class.from_pretrained(name, **kwargs)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot load {name}: {str(error).strip().splitlines()[0]}") from error


def load_tokenizer(*names: str | None) -> PreTrainedTokenizerBase:
    """The tokenizer of the first of `names` that is given.

    They are --tokenizer_name, the checkpoint, whose model knows only the tokenizer that it was trained with, and the
    pretrained model.
    """
    return load_pretrained(AutoTokenizer, next(name for name in names if name is not None))


def load_model(auto_class: Any, name: str, arguments: TrainingArguments, **kwargs: Any) -> PreTrainedModel:
    """The pretrained model `name`; weights that it lacks, such as those of a new head, are drawn by the seed."""
    set_seed(arguments.seed)  # now: they must be the same on every rank, and only some ranks have prepared data
    # float32 whatever the file holds: these are the weights that the optimizer changes.
    return load_pretrained(auto_class, name, dtype=torch.float32, **kwargs)


def new_model(
    auto_class: Any, config: PretrainedConfig, overrides: str | None, arguments: TrainingArguments
) -> PreTrainedModel:
    """A model of `config` with --config_overrides, its weights drawn by the seed.

    Raises `UserError` if there is no such model.
    """
    set_seed(arguments.seed)
    try:
        if overrides:
            config.update_from_string(overrides)
        return auto_class.from_config(config)
    except ValueError as error:
        given = f" with --config_overrides {overrides}" if overrides else ""
        raise UserError(f"cannot make a {config.model_type}{given}: {' '.join(str(error).split())}") from error


# Training and evaluation.


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
        samples: what the samples are called on screen.
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
