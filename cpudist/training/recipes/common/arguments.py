"""The options of a recipe: from command line, JSON or YAML to dataclasses, and what every recipe checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformers import HfArgumentParser, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from cpudist.errors import UserError


class _Parser(HfArgumentParser):  # type: ignore[misc]
    """Reports wrong options as a `UserError`, so that rank 0 alone shows it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists the options")


def parse(recipe: str, description: str, types: Sequence[type], argv: list[str]) -> tuple[Any, ...]:
    """Fill one object of each of `types` from `argv`: options, or the name of a JSON or YAML file."""
    parser = _Parser(types, prog=f"cpudist-train {recipe}", description=description)
    try:
        return tuple(_parse(parser, argv))
    except (ValueError, TypeError, OSError) as error:
        # What the dataclasses find wrong with their values (TrainingArguments checks a lot), or a bad file.
        raise UserError(f"{recipe}: {' '.join(str(error).split())}") from error


def check_training_arguments(arguments: TrainingArguments) -> None:
    """What no recipe can do without, what must not be overwritten, and the defaults that suit every recipe."""
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
    """The checkpoint that --resume_from_checkpoint means: a folder, or for "last" ("true") the newest one."""
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


def _parse(parser: HfArgumentParser, argv: list[str]) -> Sequence[Any]:
    filled: Sequence[Any]
    suffix = Path(argv[0]).suffix if len(argv) == 1 else ""
    if suffix == ".json":
        filled = parser.parse_json_file(argv[0])
    elif suffix in (".yaml", ".yml"):
        filled = parser.parse_yaml_file(argv[0])
    else:
        *filled, unknown = parser.parse_args_into_dataclasses(
            args=argv, look_for_args_file=False, return_remaining_strings=True
        )
        if unknown:
            raise UserError(
                f"{parser.prog} does not know {' '.join(unknown)}; --help lists its options, "
                "those of cpudist-train itself come before the recipe's name"
            )
    return filled


def _last_checkpoint(arguments: TrainingArguments) -> str | None:
    if not os.path.isdir(arguments.output_dir):
        return None
    checkpoint: str | None = get_last_checkpoint(arguments.output_dir)
    return checkpoint
