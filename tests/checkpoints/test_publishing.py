"""Names of checkpoints that are being written: those of two jobs, or of two attempts at one, never mix."""

import os
import shutil
from pathlib import Path

import pytest

from cpudist.checkpoints.folders import numbered
from cpudist.checkpoints.publishing import Publisher, Ranks
from cpudist.errors import UserError


def _begin(publisher: Publisher, name: str, content: str) -> Path:
    written = publisher.begin(name, Ranks(), publishes=True)
    written.mkdir(parents=True)
    (written / content).touch()
    return written


def _complete(publisher: Publisher, written: Path) -> None:
    publisher.complete(written, Ranks(), True, lambda: None, lambda parts: (written / "seal").touch())


def _content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_frozen_host_of_an_earlier_attempt_writes_into_no_later_checkpoint(tmp_path: Path) -> None:
    earlier, later = Publisher(tmp_path), Publisher(tmp_path)
    frozen = _begin(earlier, "checkpoint-5", "frozen")
    written = _begin(later, "checkpoint-5", "new")
    assert not frozen.exists(), "a left-over of a job that was killed is removed"
    frozen.mkdir(parents=True)
    (frozen / "late").touch()
    assert numbered(tmp_path) == {}
    assert [path.name for path in tmp_path.iterdir()] == [".incomplete"], "nothing that Trainer takes for a checkpoint"
    _complete(later, written)
    assert _content(tmp_path / "checkpoint-5") == ["new", "seal"]
    assert list(numbered(tmp_path)) == [5]
    _complete(later, _begin(later, "checkpoint-6", "new"))
    assert (frozen / "late").exists(), "once a job has begun to save, only the next one clears all"
    _complete(Publisher(tmp_path), _begin(Publisher(tmp_path), "checkpoint-7", "new"))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["checkpoint-5", "checkpoint-6", "checkpoint-7"]


def test_what_a_power_failure_leaves_is_a_complete_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may write a rename to the disk before the content of files that were not synced."""
    fsync, rename, synced, folder = os.fsync, os.rename, set(), tmp_path / "out"
    publisher = Publisher(folder)

    def noted_fsync(file: int) -> None:
        fsync(file)
        synced.add(Path(os.readlink(f"/proc/self/fd/{file}")))

    def checked_rename(source: Path, target: Path) -> None:
        if source == written:  # the first of the renames that publish it
            assert synced == {written, *written.rglob("*")}
            assert (written / "seal").exists()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", checked_rename)
    written = _begin(publisher, "checkpoint-5", "part")
    (written / "inner").mkdir()
    (written / "inner" / "part").touch()
    _complete(publisher, written)
    assert _content(folder) == [f"checkpoint-5{name}" for name in ("", "/inner", "/inner/part", "/part", "/seal")]
    assert folder in synced, "the new name, too"


def test_two_jobs_save_beside_each_other_at_once(tmp_path: Path) -> None:
    """Two jobs call `cpudist.save` with folders side by side."""
    jobs = [Publisher(tmp_path, alone=False) for _ in range(3)]
    written = [_begin(job, name, name) for job, name in zip(jobs, ("one", "two", "two"), strict=True)]
    for job, folder in reversed([*zip(jobs, written, strict=True)][::2]):
        _complete(job, folder)
    assert _content(tmp_path) == ["one", "one/one", "one/seal", "two", "two/seal", "two/two"]
    gone = _begin(jobs[0], "three", "three")
    shutil.rmtree(gone.parent)
    with pytest.raises(UserError, match="has gone: does another job save in"):
        jobs[0].complete(gone, Ranks(), True, lambda: None, lambda parts: None)


def test_an_error_of_any_rank_is_raised_on_all() -> None:
    class Two(Ranks):
        def all_gather(self, value: object) -> list[object]:
            return [value, self.other]

    ranks, own, ours = Two(), ValueError("own"), UserError("ours")

    def fail(error: Exception) -> None:
        raise error

    for error in (own, ours):
        with pytest.raises(type(error)) as caught:
            Ranks().each(lambda error=error: fail(error))
        assert caught.value is error, "of a process that is alone"
    ranks.size, ranks.other = 2, ("value", None)
    assert ranks.each(lambda: "mine") == ["mine", "value"]
    with pytest.raises(ValueError, match="own"):
        ranks.each(lambda: fail(own))
    with pytest.raises(UserError, match="rank 0: ours"):
        ranks.each(lambda: fail(ours))
    ranks.other = (None, "full")
    with pytest.raises(UserError, match="rank 1: full"):
        ranks.each(lambda: None)
    ranks.rank, ranks.other = 1, ("theirs", None)
    assert ranks.first(lambda: pytest.fail("rank 0 alone does it")) is None
