"""Checkpoints of one's own loops, in this process alone."""

import json
import os
import random
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.serialization import get_crc32_options, set_crc32_options

import cpudist
from cpudist.checkpoints import folders
from cpudist.checkpoints.publishing import publisher_of
from cpudist.errors import UserError
from cpudist.job import require

pytestmark = pytest.mark.versions


class Training:
    """A model that draws random numbers. `kind`: of numbers; or "optimized", with a fused optimizer, channels last."""

    def __init__(self, seed: int = 0, kind: Any = torch.float32) -> None:
        torch.manual_seed(seed)
        layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Dropout(0.5))
        self.model: Any = torch.nn.Sequential(*layers, torch.nn.Linear(8 * 4 * 4, 2))
        self.dtype = torch.float32 if kind == "optimized" else kind
        self.model.to(self.dtype, memory_format=torch.channels_last)
        groups = [{"params": self.model[0].parameters(), "lr": 0.1}, {"params": self.model[4].parameters()}]
        self.optimizer: Any = torch.optim.AdamW(groups, lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        if kind == "optimized":
            self.model, self.optimizer = cpudist.optimize(
                self.model, self.optimizer, dtype=torch.bfloat16, keep_memory=False
            )

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> float:
        noise = random.random() + float(np.random.rand())
        loss = self.model(torch.randn(16, 3, 6, 6, dtype=self.dtype) + noise).float().square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()


def _steps(folder: Path) -> list[int]:
    return list(folders.numbered(folder))


@pytest.mark.parametrize(
    ("kind", "asynchronous"), [(torch.float32, True), (torch.float64, False), ("optimized", False), ("optimized", True)]
)
def test_a_training_goes_on_as_if_nothing_had_been(tmp_path: Path, kind: Any, asynchronous: bool) -> None:
    folder, whole, weights = tmp_path / "new" / "out", Training(kind=kind), {}
    checkpoints = cpudist.Checkpoints(folder, keep=3, asynchronous=asynchronous)
    assert checkpoints.restore(**whole.parts, epoch=0) == 0
    assert checkpoints.values == {"epoch": 0}
    for step in range(1, 4):
        whole.step()
        checkpoints.save(step, **whole.parts, epoch=step // 2, milestones={2: "int keys stay", "empty": {}})
        weights[step] = whole.model[0].weight.detach().clone()
    losses = [whole.step() for _ in range(3)]
    checkpoints.wait()

    again, checkpoints = Training(1, kind), cpudist.Checkpoints(folder)
    for step, weight in weights.items():
        assert cpudist.load(folder / f"checkpoint-{step}", again.model)["epoch"] == step // 2
        assert torch.equal(again.model[0].weight, weight)
    assert checkpoints.restore(**again.parts, epoch=0, best=9.0) == 3
    assert checkpoints.values == {"epoch": 1, "best": 9.0, "milestones": {2: "int keys stay", "empty": {}}}
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert [again.step() for _ in range(3)] == losses


def test_the_newest_are_kept_and_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    training, checkpoints = Training(), cpudist.Checkpoints(tmp_path, keep=2)
    (tmp_path / "checkpoint-1").mkdir()  # of Trainer, say
    (tmp_path / "checkpoint-1" / "trainer_state.json").touch()
    (tmp_path / "checkpoint-best").mkdir()
    (tmp_path / "checkpoint-999").touch()
    left = tmp_path / folders.INCOMPLETE / "name" / "checkpoint-100"  # a job was killed here
    left.mkdir(parents=True)
    for step in (0, 9, 10):
        checkpoints.save(step, model=training.model)
    assert _steps(tmp_path) == [1, 9, 10]
    os.utime(tmp_path / "checkpoint-10", (1, 1))  # as a copy of the folder may have set it
    assert not (tmp_path / folders.INCOMPLETE).exists()
    (aside := tmp_path / folders.INCOMPLETE / "replaced-1").mkdir(parents=True)
    (tmp_path / "checkpoint-10").rename(aside / "checkpoint-10")  # a job was killed while it replaced this one
    assert cpudist.Checkpoints(tmp_path).restore(model=training.model) == 10
    with pytest.raises(UserError, match=r"checkpoint-1 exists and is no checkpoint of cpudist"):
        checkpoints.save(1, model=training.model)
    checkpoints.save(9, model=training.model)  # again, after going back
    assert _steps(tmp_path) == [1, 9, 10]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm", "said"),
    [
        ("__0_0.distcp", _cut, "bytes instead of"),
        ("__0_0.distcp", _flip, "has another checksum than when it was written"),
        (".metadata", Path.unlink, ".metadata: No such file"),
        ("checkpoint.json", lambda path: path.write_text("{}"), "checkpoint.json cannot be read"),
    ],
)
def test_a_damaged_one_is_named_and_the_one_before_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, harm: Any, said: str
) -> None:
    training, checkpoints = Training(), cpudist.Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, **training.parts)
    harm(tmp_path / "checkpoint-2" / name)
    assert checkpoints.restore(**training.parts) == 1
    warning, *_ = capsys.readouterr().err.splitlines()
    assert f"{tmp_path}/checkpoint-2 is damaged: " in warning
    assert said in warning
    with pytest.raises(UserError, match="checkpoint-2 is damaged"):
        cpudist.load(tmp_path / "checkpoint-2", model=training.model)
    harm(tmp_path / "checkpoint-1" / name)
    with pytest.raises(UserError, match=r"every checkpoint in [^ ]* is damaged"):
        checkpoints.restore(**training.parts)


def test_wrong_arguments_and_checkpoints_of_another_model_are_user_errors(tmp_path: Path) -> None:
    keep: Any
    for keep in (0, -1, True, 1.5):
        with pytest.raises(UserError, match="keep must be a whole number of checkpoints"):
            cpudist.Checkpoints(tmp_path, keep=keep)
    training = Training()
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "one").mkdir()  # an empty folder is not in the way
    cpudist.save(tmp_path / "one", training.model, training.optimizer)
    small = torch.nn.Sequential(torch.nn.Conv2d(3, 9, 3))
    other = torch.optim.SGD(training.model[1].parameters())
    load: Any
    save: Any
    load, save, one, two = cpudist.load, cpudist.save, tmp_path / "one", tmp_path / "two"
    more = r"it has 1\.weight, 1\.bias, 1\.running_mean and 4 more names besides"
    for call, part in (
        (lambda: load(one, small), rf"(?s)(?=.*{more}).*has 0\.weight of shape \(8, 3, 3, 3\) instead of \(9, 3"),
        (lambda: load(one, torch.nn.Sequential(training.model)), r"has no 0\.0\.weight"),
        (lambda: load(one, training.model, scheduler=training.scheduler), "has no scheduler"),
        (lambda: load(one, training.model, other), r"optimizer does not have 1\.weight, 1\.bias"),
        (lambda: save(two, small, other), "updates 2 parameters of another model"),
        (lambda: save(two, optimizer=other), "give model= too"),
        (lambda: save(two, 3), "model= must be of type Module, not int"),
        (lambda: load(5, small), "the folder must be of type str or PathLike, not int"),
        (lambda: cpudist.Checkpoints(5), "the folder must be of type str or PathLike, not int"),
        (lambda: cpudist.optimize(None), "optimize's model must be of type Module, not NoneType"),
        (lambda: cpudist.optimize(small, 3), "optimize's optimizer must be of type Optimizer, not int"),
        (lambda: save(two, values=1), "values= is a name"),
        (lambda: save(tmp_path / "notes", small), "notes exists and is no checkpoint"),
        (lambda: load(two, small), "there is no checkpoint"),
        (lambda: cpudist.Checkpoints(tmp_path).restore(optimizer=other), "give model= too"),
        (lambda: cpudist.Checkpoints(tmp_path).save(-1, small), "step must be a whole number"),
    ):
        with pytest.raises(UserError, match=part):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "one"]
    assert (tmp_path / "notes").read_text() == "mine"


def test_one_checkpoint_is_saved_and_loaded_by_its_folder(tmp_path: Path) -> None:
    training, average = Training(), torch.nn.Linear(2, 2)
    try:
        for epoch in (0, 1):  # the second takes the place of the first, and torch computes checksums as before
            training.step()
            set_crc32_options(bool(epoch))
            cpudist.save(tmp_path / "best", training.model, training.optimizer, average=average, epoch=epoch)
            assert get_crc32_options() == bool(epoch)
    finally:
        set_crc32_options(True)
    again, empty = Training(seed=1), torch.nn.Linear(2, 2)
    before = torch.get_rng_state()
    assert cpudist.load(tmp_path / "best", again.model, average=empty) == {"epoch": 1}
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(empty.weight, average.weight)
    for name, value in training.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
    for name, (size, checksum) in json.loads((tmp_path / "best" / "checkpoint.json").read_text())["files"].items():
        content = (tmp_path / "best" / name).read_bytes()
        assert (size, int(checksum, 16)) == (len(content), zlib.crc32(content))
    dcp_to_torch_save(tmp_path / "best", tmp_path / "plain.pt")
    plain = torch.load(tmp_path / "plain.pt", weights_only=False)
    assert torch.equal(plain["model"]["0.weight"], training.model[0].weight)


def test_the_next_call_raises_what_failed_in_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training, checkpoints = Training(), cpudist.Checkpoints(tmp_path, asynchronous=True)
    checkpoints.save(1, **training.parts)
    checkpoints.wait()

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "sync", full)
    checkpoints.save(2, **training.parts)
    with pytest.raises(UserError, match=r"cannot save .*/checkpoint-2: the disk at .* is full"):
        checkpoints.save(3, **training.parts)
    monkeypatch.undo()
    assert not (tmp_path / folders.INCOMPLETE).exists(), "the run record needs the room"
    assert checkpoints.restore(**training.parts) == 1
    checkpoints.save(4, **training.parts)
    assert checkpoints.restore(**training.parts) == 4, "after the thread"


def test_a_link_stays_and_leads_to_the_new_checkpoint(tmp_path: Path) -> None:
    best = tmp_path / "best"
    best.symlink_to("elsewhere/first")
    for accuracy in (0.5, 0.9):
        cpudist.save(best, accuracy=accuracy)
        assert best.is_symlink()
        assert cpudist.load(tmp_path / "elsewhere" / "first") == cpudist.load(best) == {"accuracy": accuracy}


# A run's name and number of restarts, --resume, and the step that it saves; then the step from which it goes on, the
# steps whose checkpoints are left, and what it says.
RUNS: list[tuple[str, int, Any, int, int, list[int], str]] = [
    ("one", 0, None, 5, 0, [5], ""),
    ("one", 2, None, 7, 5, [5, 7], "restart 2: going on from {}/checkpoint-5\n"),
    ("one", 3, None, 8, 7, [5, 7, 8], "restart 3: going on from {}/checkpoint-7\n"),
    ("two", 0, None, 9, 8, [7, 8, 9], "checkpoint-8, which an earlier run has saved; --resume never begins anew\n"),
    ("two", 1, None, 10, 9, [7, 8, 9, 10], "restart 1: going on from {}/checkpoint-9\n"),
    ("three", 0, "never", 5, 0, [5], "beginning anew; the checkpoints of earlier runs are in"),
    ("three", 1, "never", 6, 0, [5, 6], "restart 1: --resume never, starting from the beginning\n"),
]


def test_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The device's random numbers go on, too, where it has a generator of its own: here after the second restart."""
    training, random_states = Training(), []
    for name, restarts, resume, step, begins, left, says in RUNS:
        publisher_of.cache_clear()  # as in a new process
        monkeypatch.setenv("CPUDIST_RUN_ID", name)
        monkeypatch.setenv("CPUDIST_RESTART_COUNT", str(restarts))
        cpudist.init("gloo", pin=False, resume=resume)
        devices = require().backend.devices
        monkeypatch.setattr(devices, "random_state", lambda state=(name, restarts): state)
        monkeypatch.setattr(devices, "set_random_state", random_states.append)
        try:
            checkpoints = cpudist.Checkpoints(tmp_path, keep=3)
            found = checkpoints.restore(**training.parts)
            checkpoints.save(step, **training.parts)
            assert require().record.checkpoint == f"checkpoint-{step}"
        finally:
            cpudist.shutdown()
        assert (found, _steps(tmp_path)) == (begins, left), (name, restarts)
        assert says.format(tmp_path) in capsys.readouterr().err
    assert _steps(tmp_path / "earlier-1") == [7, 8, 9, 10]
    assert random_states == [("one", 0), ("one", 2), ("one", 3), ("two", 0)]


def test_a_checkpoint_of_an_earlier_run_is_not_replaced_without_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training()
    cpudist.Checkpoints(tmp_path).save(6, **training.parts)
    monkeypatch.setenv("CPUDIST_RUN_ID", "one")
    publisher_of.cache_clear()
    cpudist.init("gloo", pin=False)
    with pytest.raises(UserError, match="checkpoint-6 belongs to an earlier run; move it"):
        cpudist.Checkpoints(tmp_path).save(6, **training.parts)
    assert cpudist.Checkpoints(tmp_path).restore(**training.parts) == 6
    cpudist.shutdown()


def test_the_thread_that_saves_has_low_priority_and_the_job_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def slow(folder: Path) -> None:
        time.sleep(0.5)
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(folders, "sync", slow)
    cpudist.init("gloo", pin=False)
    cpudist.Checkpoints(tmp_path, asynchronous=True).save(1, model=torch.nn.Linear(1, 1))
    cpudist.shutdown()
    assert (seen, _steps(tmp_path)) == ([15], [1])
