"""Text files to blocks of tokens, and the exact evaluation loss, in one process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import clm
from cpudist.training.recipes.clm import DataArguments, ModelArguments, next_token_losses
from cpudist.training.recipes.common.arguments import check_training_arguments, checkpoint_to_resume, parse
from cpudist.training.recipes.common.evaluation import ExactTrainer
from cpudist.training.recipes.language import text

_TEXT = "".join(f"def function_{i}(x):\n    return x + {i}\n\n" for i in range(200))


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True)


def test_find_files(tmp_path: Path) -> None:
    for name, content in {
        "b.txt": "b",
        "a.txt": "a",
        "sub/c.py": "c",
        "sub/.hidden": "h",
        "sub/d.bin": "\0",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)

    def names(*entries: str) -> list[str]:
        found = text.find_files([str(tmp_path / entry) for entry in entries])
        return [str(Path(name).relative_to(tmp_path)) for name in found]

    assert names("b.txt", "*.txt") == ["b.txt", "a.txt"]
    assert names("") == ["a.txt", "b.txt", "sub/c.py"]


def test_missing_and_empty_files_are_user_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="names no text file"):
        text.find_files([str(tmp_path / "*.md")])
    with pytest.raises(UserError, match="empty"):
        text.find_files([str(tmp_path / "empty.txt")])


def test_blocks_are_the_text_and_cached(tmp_path: Path, arguments: TrainingArguments) -> None:
    path = tmp_path / "text.py"
    path.write_text(_TEXT)
    lines = text.read_lines([str(path)], arguments)
    tokenizer = text.train_tokenizer(lines, vocab_size=300)
    blocks = text.cut_into_blocks(lines, tokenizer, 16, arguments)
    assert {len(block) for block in blocks["input_ids"]} == {16}
    assert blocks["labels"] == blocks["input_ids"]
    joined = tokenizer.decode([token for block in blocks["input_ids"] for token in block])
    assert _TEXT.startswith(joined)
    assert len(_TEXT) - len(joined) < 16 * 16

    again = text.cut_into_blocks(lines, text.train_tokenizer(lines, vocab_size=300), 16, arguments)
    assert again.cache_files == blocks.cache_files
    with pytest.raises(UserError, match="too short for one block"):
        text.cut_into_blocks(lines, tokenizer, 1_000_000, arguments)


def test_evaluation_loss_does_not_depend_on_batches(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=8, vocab_size=16))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(16, (7, 8))]
    losses = []
    for batch_size in (1, 3, 7):
        options = TrainingArguments(str(tmp_path), use_cpu=True, per_device_eval_batch_size=batch_size, report_to=[])
        losses.append(
            ExactTrainer(score=next_token_losses, model=model, args=options, eval_dataset=data).evaluate()["eval_loss"]
        )
    rows = torch.stack([entry["input_ids"] for entry in data])
    with torch.no_grad():
        expected = model.eval()(rows, labels=rows).loss.item()
    assert losses == pytest.approx([expected] * 3, rel=1e-6)
    assert not math.isnan(expected)


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


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--no_such_option", "1"], "cpudist-train clm does not know --no_such_option 1"),
        (["--max_steps", "many"], "max_steps"),
        (["missing.json"], "missing.json"),
        (["--fp16", "--bf16", "--use_cpu"], "fp16 and bf16"),
    ],
)
def test_wrong_options_are_user_errors(words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        parse("clm", "", (ModelArguments, DataArguments, TrainingArguments), words)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--train_file", __file__], "--do_train"),
        (["--do_train"], "--train_file"),
        (["--train_file", __file__, "--do_train", "--block_size", "100000"], "too short for one block"),
        (["--train_file", __file__, "--do_train", "--config_overrides", "depth=3"], "depth"),
        (["--train_file", __file__, "--do_train", "--model_type", "gpt99"], "gpt99"),
        (
            ["--train_file", __file__, "--do_train", "--model_name_or_path", "/missing/model"],
            "/missing/model",
        ),
    ],
)
def test_wrong_input_is_a_user_error(tmp_path: Path, words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part) as caught:
        clm.main(["--output_dir", str(tmp_path), "--use_cpu", *words])
    assert "\n" not in str(caught.value)


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
