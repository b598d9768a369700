"""Checkpoints as folders: what counts as one, and how one comes and goes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from cpudist.huggingface import checkpoint_files
from cpudist.huggingface.checkpoint_files import INCOMPLETE, checkpoints, clear, delete, publish, sync, why_full


def _write(folder: Path, text: str = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(text)
    return folder


def test_only_what_was_saved_to_its_end_counts(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        _write(tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-101").mkdir()  # plain Trainer was killed here
    (_write(tmp_path / "checkpoint-102") / "checkpoint-is-incomplete.txt").touch()  # here it saved on SIGTERM
    _write(tmp_path / INCOMPLETE / "checkpoint-103")
    _write(tmp_path / "checkpoint-best")
    (tmp_path / "checkpoint-104").touch()
    assert list(checkpoints(tmp_path).items()) == [(step, tmp_path / f"checkpoint-{step}") for step in (9, 10, 100)]
    assert checkpoints(tmp_path / "missing") == {}


def test_one_is_brought_out_in_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    _write(tmp_path / "checkpoint-5", "old")
    written = _write(tmp_path / INCOMPLETE / "checkpoint-5", "new")
    sync(written)
    assert publish(written, tmp_path) == tmp_path / "checkpoint-5"
    assert (tmp_path / "checkpoint-5" / "trainer_state.json").read_text() == "new"
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_one_that_is_being_deleted_is_none_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = _write(tmp_path / "checkpoint-5")
    rmtree = shutil.rmtree

    def watched(folder: Path, ignore_errors: bool) -> None:
        assert not checkpoint.exists()
        assert (folder / "trainer_state.json").exists()
        rmtree(folder, ignore_errors)

    monkeypatch.setattr(checkpoint_files.shutil, "rmtree", watched)
    delete(str(checkpoint), ignore_errors=True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_recognised_by_its_error_and_no_other(tmp_path: Path) -> None:
    assert why_full(RuntimeError("file write failed"), tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    full = RuntimeError("I/O error: No space left on device (os error 28)")  # as safetensors says it
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), full):
        assert "MiB" in str(why_full(error, tmp_path))
    caused = RuntimeError("cannot save")
    caused.__cause__ = OSError(errno.ENOSPC, "full")
    assert str(why_full(caused, tmp_path)).startswith("the disk at /")
