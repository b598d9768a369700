"""What all recipes do around their data and their model: options, a run, and its results."""

from __future__ import annotations

import os
from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser, Trainer, TrainingArguments
from transformers.hf_argparser import HfArg

from cpudist.backends.compression import AUTO
from cpudist.console import one_line
from cpudist.errors import UserError
from cpudist.huggingface.restart_point import newest_of_run, newest_whole, seen_by_all
from cpudist.job import current
from cpudist.training import summary
from cpudist.training.recipes.data import DataArguments


@dataclass
class ModelArguments:
    """Which pretrained model and tokenizer to start from."""

    model_name_or_path: str = HfArg(help="Pretrained model: a folder or a hub name.")
    tokenizer_name: str | None = HfArg(default=None, help="Tokenizer, if not the model's: a folder or a hub name.")


@dataclass
class NewModelArguments:
    """Which model to start from, a pretrained or a new one."""

    model_name_or_path: str | None = HfArg(default=None, help="Pretrained model: a folder or hub name (default: new).")
    config_overrides: str | None = HfArg(default=None, help="Changes of a new configuration: NAME=VALUE,NAME=VALUE.")


@dataclass(frozen=True)
class Options:
    """The options of a recipe, and the checkpoint that it resumes from; None for a fresh start."""

    model: Any
    data: Any
    training: TrainingArguments
    checkpoint: str | None


class _Formatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Keep the line breaks of the description, a recipe's docstring, which holds commands."""


class _Parser(HfArgumentParser):  # type: ignore[misc]
    """Report wrong options as a `UserError`, which rank 0 alone shows."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def start(recipe: str, description: str | None, argv: list[str], model: type, data: type) -> Options:
    """Parse and check the options of a recipe, and begin the run record, by default in the output folder.

    Args:
        recipe: its name.
        description: what --help begins with.
        argv: options, or the name of one JSON or YAML file.
        model: a dataclass whose fields are the options of the model.
        data: a class derived from `DataArguments`.

    Raises:
        UserError: an option is wrong, data is missing, or checkpoints are missing or would be overwritten.
    """
    parsed = parse(recipe, description, argv, model, data)
    return Options(parsed[0], parsed[1], parsed[2], begin(parsed[1], parsed[2]))


def parse(recipe: str, description: str | None, argv: list[str], model: type, data: type) -> tuple[Any, ...]:
    """Parse options as `start` does, or raise `UserError`; return those of the model, the data and the training."""
    types = (model, data, TrainingArguments)
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
        # From the checks of the dataclasses, of which TrainingArguments has many, or from a bad file.
        raise UserError(f"{recipe}: {one_line(str(error))}") from error
    if unknown:
        raise UserError(
            f"{parser.prog} does not know {' '.join(unknown)}; see its --help, and give options "
            "of cpudist-train before the recipe's name"
        )
    return tuple(filled)


def begin(options: DataArguments, arguments: TrainingArguments) -> str | None:
    """Check options as `start` does, or raise `UserError`; return the checkpoint to resume from, if any."""
    if not (arguments.do_train or arguments.do_eval):
        raise UserError("nothing to do: give --do_train, --do_eval or both")
    options.check(arguments)
    checkpoint = _checkpoint_to_resume(arguments)
    if arguments.ddp_find_unused_parameters is None:  # recipes have none; looking for them costs every step
        arguments.ddp_find_unused_parameters = False
    job = current()
    if job is not None:
        job.record.default_path(Path(arguments.output_dir) / "cpudist.json")
        if job.communication.compression is None:
            job.communication.set_compression(AUTO)
    return checkpoint


def _checkpoint_to_resume(arguments: TrainingArguments) -> str | None:
    """Find the checkpoint that --resume_from_checkpoint names, or raise `UserError`; every rank calls this.

    "last" (or "true") is the newest one in the output folder. A job that has been restarted resumes from the newest one
    that it has made itself, if there is one, whatever the option says. None is a fresh start.
    """
    wanted, folder, job = arguments.resume_from_checkpoint, Path(arguments.output_dir), current()
    own = newest_of_run(job, folder) if job is not None and arguments.do_train else None
    if own is not None:
        return own
    restarted = job is not None and job.restarts > 0
    if wanted is None or str(wanted).lower() == "false":
        starts_anew = job is not None and restarted and not job.resumes  # over its own checkpoints
        if arguments.do_train and wanted is None and not starts_anew and seen_by_all(folder):
            raise UserError(
                f"{folder} holds checkpoints of an earlier run: go on from them with --resume_from_checkpoint last, "
                "or give another --output_dir"
            )
        return None
    if str(wanted).lower() in ("last", "true"):
        newest = newest_whole(folder)
        if newest is None and not restarted:
            raise UserError(f"there is no checkpoint in {folder}; leave --resume_from_checkpoint out")
        return newest
    if not os.path.isdir(wanted):
        raise UserError(f"there is no checkpoint {wanted}; give --resume_from_checkpoint its folder, or last")
    return str(wanted)


def run(
    trainer: Trainer,
    recipe: str,
    checkpoint: str | None,
    samples: str,
    tokens_per_sample: int | None = None,
    evaluate: Callable[[Trainer], dict[str, float]] = Trainer.evaluate,
) -> None:
    """Train for --do_train, evaluate for --do_eval; write the model, metrics, the loss curve and the run record.

    Args:
        trainer: ready to train.
        recipe: its name.
        checkpoint: to resume from; None: a fresh start.
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
        if summary.draw(trainer.state.log_history, path, f"{recipe}{where}"):
            add_results({"curve": str(path)})


def _report(trainer: Trainer, split: str, metrics: dict[str, float]) -> None:
    """Print the metrics of "train" or "eval", and save them in the output folder and the run record."""
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
    add_results({split: metrics})


def add_first_and_last(trainer: Trainer, name: str, of: Callable[[dict[str, float]], float]) -> None:
    """Put a measure of the first and of the last evaluation into the run record; `of` takes it from the metrics."""
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    add_results({name: {"first": of(evaluations[0]), "last": of(evaluations[-1])}})


def report_sample(what: str, sample: str) -> None:
    """Print a sample of what a trained model does, and put it into the run record; call it on rank 0 alone."""
    add_results({"sample": sample})
    print(f"a sample of {what}:\n{sample}", flush=True)


def add_results(results: dict[str, Any]) -> None:
    """Add a recipe's results to the run record."""
    job = current()
    if job is not None:
        job.record.results.update(results)
