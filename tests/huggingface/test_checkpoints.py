"""Checkpoints of scripts that know nothing of cpudist: complete or not there, and good for any number of ranks."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_trainer
import torch
from course import BOUND, command, trained
from jobs import Result, launch, mpirun, run, train
from safetensors.torch import load_file

import cpudist
from cpudist.checkpoints.publishing import publisher_of
from cpudist.huggingface import restart_point
from cpudist.huggingface.restart_point import checkpoints
from cpudist.topology.identity import free_port

_WORDS = ["--no_cuda", "--learning_rate", "1e-2", "--save_strategy", "steps"]
_EIGHT = [*_WORDS, "--per_device_train_batch_size", "6", "--max_steps", "8", "--save_steps", "2"]
_EIGHT += ["--save_total_limit", "1"]


def _load(checkpoint: Path, ranks: int) -> None:
    """Read all that a resumed training reads."""
    assert load_file(checkpoint / "model.safetensors")
    assert torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    for name in ("scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(ranks))):
        torch.load(checkpoint / name, weights_only=False)
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] > 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A training of eight steps on two ranks, never interrupted: its folder, and what course.py found."""
    output = tmp_path_factory.mktemp("eight") / "whole"
    return output, trained(2, output, ["course.py", "--dropout"], *_EIGHT)


def _killed(whole: tuple[Path, dict[str, Any]], output: Path, kills: list[list[str]], *options: str) -> list[str]:
    """Return the words of a training that is killed, where an earlier run with more steps has left its checkpoints."""
    for name in ("checkpoint-8", "checkpoint-99"):
        shutil.copytree(whole[0] / "checkpoint-8", output / name)
    return command(output, ["watched.py", "killed", json.dumps(kills), "--dropout"], *_EIGHT, options=options)


def _went_on(whole: tuple[Path, dict[str, Any]], output: Path, result: Result, *restarts: int) -> None:
    """Check that each restart went on from one of these steps, and that the end is that of a training never killed."""
    assert result.returncode == 0, result.output
    for attempt, step in enumerate(restarts, 1):
        said = f"cpudist: restart {attempt}: going on from {output}/checkpoint-{step}\n"
        assert result.stderr.count(said) == 1, result.output
    found = json.loads((output / "found.json").read_text())
    assert found["losses"] == pytest.approx(whole[1]["losses"], abs=1e-5)
    assert found["rates"] == whole[1]["rates"]
    # A key's bias has no gradient but rounding, which depends on where tensors lie, and AdamW makes whole steps of it.
    sums = {name: value for name, value in whole[1]["parameters"].items() if "key.bias" not in name}
    assert {name: found["parameters"][name] for name in sums} == pytest.approx(sums, abs=1e-5)
    assert _steps(output) == [8], "the newest, by its making; nothing is left behind"


def _steps(output: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in output.iterdir() if path.is_dir())


@pytest.mark.job
def test_killed_while_saving_it_goes_on_as_before(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """Killed while it writes, before it brings out what it wrote, while it deletes the one before; then to the end."""
    kills = [["open", "/checkpoint-4/trainer_state.json"], ["os.rename", "/checkpoint-4"], ["shutil.rmtree", "/old-"]]
    words = _killed(whole, tmp_path / "out", kills, "--async-checkpoint")
    result = run(launch("--nproc", "2", "--max-restarts", "3", "--", *words), 2 * BOUND)
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert found == [[8, 99], [2], [2], [4]], result.output
    _went_on(whole, tmp_path / "out", result, 2, 2, 4)


@pytest.mark.job
def test_torchruns_agents_restart_it(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """Of two agents only the one whose rank was killed counts the restart."""
    words = train(*_killed(whole, tmp_path / "out", [["open", "/checkpoint-6/trainer_state.json"]]))
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    agent = shlex.join(["torchrun", "--nnodes", "2", "--max-restarts", "1", *meet, "--no-python", *words])
    result = run(["bash", "-c", f"{agent} & one=$!; {agent}; two=$?; wait $one && exit $two"], timeout=2 * BOUND)
    _went_on(whole, tmp_path / "out", result, 4)


def _losses(output: Path, patch: pytest.MonkeyPatch, run: str = "one", restarts: int = 0, **words: Any) -> list[float]:
    """Train for five steps as a new process of a run does, and save every second one; return the losses."""
    publisher_of.cache_clear()
    restart_point._trainings.clear()
    patch.setenv("CPUDIST_RUN_ID", run)
    patch.setenv("CPUDIST_RESTART_COUNT", str(restarts))
    cpudist.init("gloo", pin=False, resume=words.get("resume"))
    try:
        given = {name: words.get(name) for name in ("resume_from_checkpoint", "trial")}
        logged = small_trainer.trained(output, given, max_steps=5, save_steps=2, logging_steps=1)
        return [entry["loss"] for entry in logged if "loss" in entry]
    finally:
        cpudist.shutdown()


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The folder and the losses of the run "one", which has ended."""
    output = tmp_path_factory.mktemp("five") / "out"
    with pytest.MonkeyPatch.context() as patch:
        return output, _losses(output, patch)


@pytest.fixture
def again(five: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Trains in a copy of that folder, `tmp_path`/out; returns what was said. The losses are the same."""
    shutil.copytree(five[0], tmp_path / "out")

    def train(**words: Any) -> str:
        assert _losses(tmp_path / "out", monkeypatch, **words) == pytest.approx(five[1], abs=1e-5)
        return capfd.readouterr().err

    return train


@pytest.mark.versions
def test_started_again_it_goes_on_from_its_newest_checkpoint(again: Any, tmp_path: Path) -> None:
    made = json.loads((tmp_path / "out/checkpoint-4/checkpoint.json").read_text())
    assert (made["runs"], made["trainer"]["training"]) == (["one"], 0)
    assert f"cpudist: started again: going on from {tmp_path}/out/checkpoint-5\n" in again()


@pytest.mark.versions
def test_one_with_another_checksum_is_named_and_the_one_before_taken(again: Any, tmp_path: Path) -> None:
    damaged = tmp_path / "out/checkpoint-5/optimizer.pt"
    damaged.write_bytes(bytes(byte ^ 1 for byte in damaged.read_bytes()))
    warning, going_on, *_ = again().splitlines()
    assert f"{damaged.parent} is damaged: optimizer.pt has another checksum" in warning
    assert going_on == f"cpudist: started again: going on from {tmp_path}/out/checkpoint-4"


@pytest.mark.versions
def test_one_that_the_script_names_is_taken_though_damaged(again: Any, tmp_path: Path) -> None:
    (tmp_path / "out/checkpoint-2/training_args.bin").write_bytes(b"")
    said = again(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    assert "checkpoint-2 is damaged: training_args.bin has 0 bytes" in said
    assert "going on from" not in said


@pytest.mark.versions
@pytest.mark.parametrize(
    "words", [{"resume": "never"}, {"run": "two", "restarts": 1}, {"trial": "of a search"}], ids=str
)
def test_it_begins_anew(words: dict[str, Any], again: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Reads a trial of optuna, Ray or wandb, which need not be installed.
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: {})
    shutil.rmtree(tmp_path / "out/checkpoint-2")
    said = again(**words)
    assert (tmp_path / "out/checkpoint-2").is_dir()
    assert "going on from" not in said
    line = f"restart 1: no checkpoint of this run in {tmp_path}/out yet, starting from the beginning\n"
    assert (line in said) == ("run" in words)


@pytest.mark.job
@pytest.mark.versions
def test_goes_on_with_the_same_samples_on_fewer_ranks(tmp_path: Path) -> None:
    """32 samples in a step: on 4 ranks, then in unequal shares on 3, then in equal ones on 2 in accumulated batches.

    The steps are in the second and third of the epochs of 7 steps. The same samples are seen at the same learning rate,
    those that fill up the last step of an epoch too. Trainer alone would report two to four times the loss: this model
    ignores num_items_in_batch.
    """
    words = [*_WORDS, "--per_device_train_batch_size", "8", "--max_steps", "17", "--save_steps", "5"]

    def train(ranks: int, *more: str) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
        name = str(ranks)
        found = trained(ranks, tmp_path / name, ["watched.py", "seen", str(tmp_path / f"{name}.seen")], *words, *more)
        return found, json.loads((tmp_path / f"{name}.seen").read_text())

    whole, seen = train(4)
    assert (whole["backend"], whole["wrapped"], len(whole["losses"])) == ("ccl", "DistributedDataParallel", 17)
    assert whole["losses"][0] == pytest.approx(0.69, abs=0.1), "log(2), without knowledge"
    assert all(sum(samples.values()) == 32 for samples in seen.values())
    assert len(set().union(*(seen[str(step)] for step in range(7)))) == 204, "an epoch has all samples"
    for ranks, checkpoint, change in (
        (3, "4/checkpoint-10", ", 10 or 11 each: --per_device_train_batch_size 6 --gradient_accumulation_steps 2\n"),
        (2, "3/checkpoint-15", ": --per_device_train_batch_size 8 --gradient_accumulation_steps 2\n"),
    ):
        resumed, seen_then = train(ranks, "--resume_from_checkpoint", str(tmp_path / checkpoint))
        assert list(seen_then) == [str(step) for step in range(int(checkpoint.rpartition("-")[2]), 17)]
        assert seen_then == {step: seen[step] for step in seen_then}
        assert resumed["rates"] == whole["rates"]
        assert resumed["losses"] == pytest.approx(whole["losses"], abs=2e-4), "transformers 4 rounds them to 1e-4"
        assert resumed["metrics"]["eval_accuracy"] == whole["metrics"]["eval_accuracy"]
        assert f"on the 4 ranks on which it was begun; keeping 32 on {ranks} ranks{change}" in resumed["stderr"]


@pytest.mark.job
@pytest.mark.parametrize(
    ("target", "name", "status"),
    [pytest.param("1", "SIGTERM", 143, marks=pytest.mark.versions), ("command", "SIGUSR1", 138)],
)
def test_a_signal_stops_all_ranks_after_a_checkpoint(tmp_path: Path, target: str, name: str, status: int) -> None:
    """A rank or `cpudist launch` gets it. The script's callbacks see it, although the job's own stand before them."""
    output, script = tmp_path / "out", ["watched.py", "signalled", target, name]
    words = [*_WORDS, "--max_steps", "1000000", "--save_steps", "1000000", "--dataloader_num_workers", "1"]
    words = command(output, script, *words, options=("--checkpoint-on-signal",))
    launched = launch("--nproc", "2", "--max-restarts", "1", "--", *words)
    result = run(launched if target == "command" else mpirun(2, *train(*words)), BOUND)
    assert result.returncode == status, result.output
    assert "starting again" not in result.stderr
    ((step, checkpoint),) = checkpoints(output).items()
    assert step > 3
    _load(checkpoint, ranks=2)
    assert [path for path in output.iterdir() if path.is_dir()] == [checkpoint], "nothing is left half written"
    assert f"cpudist: {name}: saved {checkpoint}; ending the job\n" in result.stderr, result.output
    record = json.loads(output.with_suffix(".json").read_text())
    assert (record["exit"], record["steps"]) == ("interrupted", step)
    for event in ("saved", "ended"):
        assert result.stdout.count(f"the script's callback: {event}") == 1, result.output


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB: some checkpoints find room there."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.job
def test_a_full_disk_ends_the_job_and_earlier_checkpoints_stay_whole(tmp_path: Path, small_disk: Path) -> None:
    output = small_disk / "out"
    words = command(output, ["course.py"], *_WORDS, "--max_steps", "1000", "--save_steps", "1")
    result = run(mpirun(2, *train(*words)), BOUND)
    assert result.returncode == 2, result.output
    lines = [line for line in result.report.splitlines() if "cpudist: " in line]
    assert len(lines) == 1, result.output
    whole = checkpoints(output)
    assert 0 < len(whole) < 1000
    assert f"cannot save {output}/checkpoint-{len(whole) + 1}: the disk at {small_disk} is full (" in lines[0]
    assert f"checkpoint-{len(whole)} is complete" in lines[0], result.output
    for checkpoint in whole.values():
        _load(checkpoint, ranks=2)
    assert _steps(output) == list(whole)
