"""The options of recipes: from the command line and from files, what is checked, and which checkpoint they mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes.clm import DataArguments
from cpudist.training.recipes.language_modeling import ModelArguments
from cpudist.training.recipes.script import check_training_arguments, checkpoint_to_resume, parse


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


def test_options_from_the_command_line_and_from_files(tmp_path: Path) -> None:
    types = (ModelArguments, DataArguments, TrainingArguments)
    words = [
        "--train_file",
        "a",
        "b",
        "--block-size",
        "32",
        "--output_dir",
        "o",
        "--use_cpu",
        "--max_steps",
        "3",
    ]
    _, data, training = parse("clm", "", types, words)
    assert (data.train_file, data.block_size, training.max_steps) == (["a", "b"], 32, 3)

    path = tmp_path / "options.yaml"
    path.write_text("train_file: [a, b]\nblock_size: 32\noutput_dir: o\nuse_cpu: true\nmax_steps: 3\n")
    assert parse("clm", "", types, [str(path)])[1] == data
    path.write_text("train_file: a\noutput_dir: o\nuse_cpu: true\n")
    assert parse("clm", "", types, [str(path)])[1].train_file == ["a"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--no_such_option", "1"], "cpudist-train clm does not know --no_such_option 1"),
        (["--max_steps", "many"], "max_steps"),
        (["missing.json"], "missing.json"),
        (["--fp16", "--bf16", "--use_cpu"], "fp16 and bf16"),
        (["--max_train_samples", "0"], "--max_train_samples must be 1 or more"),
        (["--validation_split_percentage", "100"], "--validation_split_percentage must lie between"),
    ],
)
def test_wrong_options_are_user_errors(words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        parse("clm", "", (ModelArguments, DataArguments, TrainingArguments), words)


def test_checkpoints_are_gone_on_from_or_left_alone(arguments: TrainingArguments) -> None:
    check_training_arguments(arguments)
    checkpoint = Path(arguments.output_dir) / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    with pytest.raises(UserError, match="--resume_from_checkpoint last"):
        check_training_arguments(arguments)
    arguments.resume_from_checkpoint = "last"
    check_training_arguments(arguments)
    assert checkpoint_to_resume(arguments) == str(checkpoint)
    arguments.resume_from_checkpoint = "elsewhere"
    with pytest.raises(UserError, match="no checkpoint elsewhere"):
        checkpoint_to_resume(arguments)
    arguments.do_train = False
    with pytest.raises(UserError, match="--do_train"):
        check_training_arguments(arguments)
