"""Finding files, choosing splits and samples, and what prepared data is cached by."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset
from transformers import TrainingArguments

from cpudist.errors import UserError
from cpudist.training.recipes import data
from cpudist.training.recipes.data import DataArguments


@pytest.fixture
def arguments(tmp_path: Path) -> TrainingArguments:
    return TrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True, report_to=[], do_train=True, do_eval=True)


def test_find_files(tmp_path: Path) -> None:
    folder = tmp_path / ".hidden" / "corpus"  # what is above a given folder does not matter
    for name, content in {
        "b.txt": "b",
        "a.txt": "a",
        "sub/c.py": "c",
        "sub/.hidden": "h",
        "sub/d.bin": "\0",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)

    def names(*entries: str) -> list[str]:
        found = data.find_files([str(folder / entry) for entry in entries])
        return [str(Path(name).relative_to(folder)) for name in found]

    assert names("b.txt", "*.txt") == ["b.txt", "a.txt"]
    assert names("") == ["a.txt", "b.txt", "sub/c.py"]


def test_missing_and_empty_files_are_user_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="names no text file"):
        data.find_files([str(tmp_path / "*.md")])
    with pytest.raises(UserError, match="empty"):
        data.find_files([str(tmp_path / "empty.txt")])


def test_parts_and_samples(arguments: TrainingArguments) -> None:
    samples = Dataset.from_dict({"number": list(range(100))})
    assert data.choose_splits({"train": samples}, arguments) == (samples, None)
    train, evaluation = data.hold_out(samples, DataArguments(validation_split_percentage=20), arguments)
    assert len(evaluation) == 20
    assert sorted([*train[:]["number"], *evaluation[:]["number"]]) == list(range(100))
    few = samples.select(range(3))
    assert data.choose_splits({"train": samples, "test": samples, "validation_matched": few}, arguments)[1] is few
    some = data.limit(samples, 10, arguments.seed)
    assert len(some) == 10
    assert max(some[:]["number"]) > 20, "from all over the file"
    assert some[:]["number"] == data.limit(samples, 10, arguments.seed)[:]["number"]
    assert data.limit(samples, 10)[:]["number"] == list(range(10))
    with pytest.raises(UserError, match="no split train, only test"):
        data.choose_splits({"test": samples}, arguments)
