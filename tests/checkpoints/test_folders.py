"""Checkpoints as folders: what counts as one, how one comes and goes, and that two jobs or attempts never mix."""

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

import pytest

from cpudist.checkpoints import folders
from cpudist.checkpoints.folders import INCOMPLETE, clear, delete, numbered, publish, restore, rotate, sync, why_full
from cpudist.checkpoints.publishing import Publisher, Ranks
from cpudist.errors import UserError
from cpudist.huggingface.restart_point import adopt, checkpoints


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


class _Killed(BaseException):
    pass


def test_a_kill_while_one_replaces_another_loses_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill before and after each rename."""
    rename, name = Path.rename, "best[1]"
    state = Path(name) / "trainer_state.json"
    for renames in range(4):
        folder, left = tmp_path / str(renames), [renames]
        _write(folder / name, "old")
        written = _write(folder / INCOMPLETE / "job" / name, "new")

        def killed(self: Path, target: Path, left: list[int] = left) -> Path:
            if not left[0]:
                raise _Killed
            left[0] -= 1
            return rename(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", killed)
            with contextlib.suppress(_Killed):
                publish(written, folder)
        restore(folder, name)
        assert (folder / state).read_text() in ("old", "new"), f"killed after {renames} renames"
        clear(folder, name)
        assert not (folder / INCOMPLETE / "job" / name).exists()
        clear(folder)
        assert [path.name for path in folder.iterdir()] == [name]
    publish(written, folder)  # the first rank of another host that shares the disk
    assert (folder / state).read_text() == "new", "not killed"


def test_the_oldest_are_deleted_by_when_they_were_saved_and_by_their_steps(tmp_path: Path) -> None:
    """Modification times are misleading, an earlier run has the highest steps, and the best checkpoint stays.

    The oldest has been deleted by somebody else.
    """

    def left(keep: int, saved: list[int], best: int | None = None) -> list[int]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        paths = {step: _write(tmp_path / "out" / f"checkpoint-{step}") for step in (5, 10, 15, 200, 300)}
        for age, path in enumerate(paths.values()):
            os.utime(path, (10_000 - 100 * age, 10_000 - 100 * age))
        found = [tmp_path / "out" / "checkpoint-1", *numbered(tmp_path / "out").values()]
        rotate(found, keep, [paths[step] for step in saved], paths.get(best or 0))
        return sorted(checkpoints(tmp_path / "out"))

    assert left(2, []) == [200, 300]
    assert left(2, [5, 10, 15]) == [10, 15]
    assert left(4, [10, 15]) == [10, 15, 200, 300]
    assert left(2, [15, 10, 5], best=200) == [5, 200]
    assert left(1, [15, 10, 5], best=200) == [5, 200]
    assert left(1, [5], best=5) == [5]
    assert left(9, [5]) == [5, 10, 15, 200, 300]


def test_what_made_room_comes_back_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names of folders that lie on disks, as earlier versions have left them, too."""
    for name in ("replaced-1/checkpoint-5", "old-1/checkpoint-6", "0123abcd/checkpoint-7"):
        _write(tmp_path / ".incomplete" / name)
    restore(tmp_path)
    assert list(numbered(tmp_path)) == [5], "6 was being deleted, and 7 being written"

    def killed(folder: Path, ignore_errors: bool) -> None:
        raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", killed)
        with contextlib.suppress(_Killed):
            delete(tmp_path / "checkpoint-5")
    restore(tmp_path)
    assert list(numbered(tmp_path)) == [], "it may have lost some of its files"
    clear(tmp_path)
    delete(tmp_path / "checkpoint-5", ignore_errors=True)
    with pytest.raises(FileNotFoundError):
        delete(tmp_path / "checkpoint-5")
    assert list(tmp_path.iterdir()) == []


def test_what_a_derived_trainer_has_saved_by_itself_is_kept(tmp_path: Path) -> None:
    folder, written = tmp_path / "checkpoint-5", _write(tmp_path / INCOMPLETE / "job" / "checkpoint-5")
    folder.mkdir()
    (folder / "adapter.bin").write_text("own")
    adopt(folder, written)
    publish(written, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["adapter.bin", "trainer_state.json"]

    adopt(folder, _write(tmp_path / INCOMPLETE / "job" / "checkpoint-5"))  # that one is complete: of an earlier run
    assert (folder / "adapter.bin").exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_may_sync_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    sync(_write(tmp_path / "checkpoint-5"))


def test_a_full_disk_is_recognised_by_its_error_and_no_other(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        assert why_full(RuntimeError("file write failed"), folder) is None
    assert list(tmp_path.iterdir()) == []
    full = RuntimeError("I/O error: No space left on device (os error 28)")  # as safetensors says it
    for error in (OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), full):
        assert "is full (" in str(why_full(error, tmp_path))
    caused = RuntimeError("cannot save")
    caused.__cause__ = OSError(errno.ENOSPC, "full")
    assert str(why_full(caused, tmp_path)).startswith("the disk at /")


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
    jobs = [Publisher(tmp_path, alone=False) for _ in range(3)]
    written = [_begin(job, name, name) for job, name in zip(jobs, ("one", "two", "two"), strict=True)]
    for job, folder in reversed([*zip(jobs, written, strict=True)][::2]):
        _complete(job, folder)
    assert _content(tmp_path) == ["one", "one/one", "one/seal", "two", "two/seal", "two/two"]
    gone = _begin(jobs[0], "three", "three")
    shutil.rmtree(gone.parent)
    with pytest.raises(UserError, match="is missing: does another job save in"):
        jobs[0].complete(gone, Ranks(), True, lambda: None, lambda parts: None)
