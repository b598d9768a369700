"""Text to blocks of tokens, and the tokenizers that are trained for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import clm, mlm
from cpudist.training.recipes.language_modeling import DataArguments, cut_into_blocks, read_text, train_tokenizer

_TEXT = "".join(f"def function_{i}(x):\n    return x + {i}\n\n" for i in range(200))


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True, do_eval=True)


def test_blocks_are_the_text_and_cached(tmp_path: Path, arguments: TrainingArguments) -> None:
    path = tmp_path / "text.py"
    path.write_text(_TEXT)
    lines = read_text(DataArguments(train_file=[str(path)]), arguments)["train"]
    tokenizer = train_tokenizer(lines, 300, clm.SPECIAL_TOKENS)
    blocks = cut_into_blocks(lines, tokenizer, 16, arguments)
    assert {len(block) for block in blocks["input_ids"]} == {16}
    assert blocks["labels"] == blocks["input_ids"]
    joined = tokenizer.decode([token for block in blocks["input_ids"] for token in block])
    assert _TEXT.startswith(joined)
    assert len(_TEXT) - len(joined) < 16 * 16

    again = cut_into_blocks(lines, train_tokenizer(lines, 300, clm.SPECIAL_TOKENS), 16, arguments)
    assert again.cache_files == blocks.cache_files
    with pytest.raises(UserError, match="too short for one block"):
        cut_into_blocks(lines, tokenizer, 1_000_000, arguments)


def test_blocks_stand_between_special_tokens(tmp_path: Path, arguments: TrainingArguments) -> None:
    path = tmp_path / "text.py"
    path.write_text(_TEXT)
    lines = read_text(DataArguments(train_file=[str(path)]), arguments)["train"]
    tokenizer = train_tokenizer(lines, 300, mlm.SPECIAL_TOKENS)
    rows = cut_into_blocks(lines, tokenizer, 16, arguments)["input_ids"][:]
    assert {(len(row), row[0], row[-1]) for row in rows} == {(16, tokenizer.cls_token_id, tokenizer.sep_token_id)}
    joined = tokenizer.decode([token for row in rows for token in row[1:-1]])
    assert _TEXT.startswith(joined)
    assert tokenizer("x [MASK]")["input_ids"] == tokenizer("x[MASK]")["input_ids"], "a mask stands for the blank, too"
    assert tokenizer.decode(tokenizer("x", "y")["input_ids"]) == "[CLS]x[SEP]y[SEP]"


def _jsonl(path: Path, rows: list[str], column: str) -> None:
    path.write_text("".join(f'{{"number": 1, "{column}": "{row}"}}\n' for row in rows))


def test_a_data_set_by_name_comes_as_lines(tmp_path: Path, arguments: TrainingArguments) -> None:
    _jsonl(tmp_path / "train.jsonl", ["one", "two\\n"], "story")
    _jsonl(tmp_path / "validation.jsonl", ["three"], "story")
    splits = read_text(DataArguments(dataset_name=str(tmp_path)), arguments)
    assert {name: split.to_dict() for name, split in splits.items()} == {
        "train": {"text": ["one\n", "two\n"]},
        "validation": {"text": ["three\n"]},
    }
    with pytest.raises(UserError, match=r"cannot read .*missing"):
        read_text(DataArguments(dataset_name=str(tmp_path / "missing")), arguments)
