"""Checkpoints of scripts that know nothing of cpudist: complete or not there, and good for any number of ranks."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import Result, launch, mpirun, run, train
from safetensors.torch import load_file
from transformers.trainer_utils import get_last_checkpoint

from cpudist.huggingface.restart_point import checkpoints
from cpudist.topology.identity import free_port

pytestmark = pytest.mark.job

BOUND = 400.0
SCRIPTS = Path(__file__).parent / "checks"

_WORDS = ["--do_train", "--report_to", "none", "--disable_tqdm", "true", "--no_cuda", "--seed", "3"]
_WORDS += ["--logging_steps", "1", "--learning_rate", "1e-2", "--save_strategy", "steps"]


def _start(
    ranks: int, output: Path, script: list[str], *words: str, options: tuple[str, ...] = (), launched: bool = False
) -> Result:
    command = ["--backend", "ccl", "--record", str(output.with_suffix(".json")), *options]
    command += [str(SCRIPTS / script[0]), *script[1:], "--output_dir", str(output), *_WORDS, *words]
    restarts = ["--max-restarts", "1", "--", *command]
    return run(launch("--nproc", str(ranks), *restarts) if launched else mpirun(ranks, *train(*command)), BOUND)


def _train(ranks: int, output: Path, script: list[str], *words: str) -> dict[str, Any]:
    """Run to the end and return what course.py found."""
    result = _start(ranks, output, script, *words)
    assert result.returncode == 0, result.output
    return {**json.loads((output / "found.json").read_text()), "stderr": result.stderr}


def _load(checkpoint: Path, ranks: int) -> None:
    """Read all that a resumed training reads."""
    assert load_file(checkpoint / "model.safetensors")
    assert torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    for name in ("scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(ranks))):
        torch.load(checkpoint / name, weights_only=False)
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] > 0


_EIGHT = ["--per_device_train_batch_size", "6", "--max_steps", "8", "--save_steps", "2", "--save_total_limit", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A training of eight steps on two ranks, never interrupted: its folder, and what course.py found."""
    output = tmp_path_factory.mktemp("eight") / "whole"
    return output, _train(2, output, ["course.py", "--dropout"], *_EIGHT)


def _is_like(found: dict[str, Any], whole: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(whole["losses"], abs=1e-5)
    assert found["rates"] == whole["rates"]
    # A key's bias has no gradient but rounding, which depends on where tensors lie, and AdamW makes whole steps of it.
    sums = {name: value for name, value in whole["parameters"].items() if "key.bias" not in name}
    assert {name: found["parameters"][name] for name in sums} == pytest.approx(sums, abs=1e-5)


def test_killed_while_saving_it_resumes_as_if_nothing_had_been(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    """Killed while it writes, before it brings out what it wrote, while it deletes the one before; then to the end."""
    words, output, beside = _EIGHT, tmp_path / "killed", ("--async-checkpoint",)
    for event, part, newest, options in (
        ("open", "/checkpoint-4/trainer_state.json", 2, ()),
        ("os.rename", "/checkpoint-4", 2, beside),
        ("shutil.rmtree", ".incomplete/old-", 4, beside),
    ):
        resume = ["--resume_from_checkpoint", str(get_last_checkpoint(output))] if output.exists() else []
        result = _start(2, output, ["killed.py", event, part, "--dropout"], *words, *resume, options=options)
        assert result.returncode != 0, result.output
        assert (output / ".incomplete").is_dir(), "killed where it should be"
        assert list(output.glob("checkpoint-*")) == [output / f"checkpoint-{newest}"], result.output
        _load(output / f"checkpoint-{newest}", ranks=2)
    last = ["--resume_from_checkpoint", str(get_last_checkpoint(output))]
    resumed = _train(2, output, ["course.py", "--dropout"], *words, *last)
    _is_like(resumed, whole[1])
    assert [path.name for path in output.iterdir() if path.is_dir()] == ["checkpoint-8"], "nothing is left behind"


def _earlier_run(whole: Path, output: Path) -> None:
    """Leave in `output` what an earlier run would have left there: a finished training, and more steps than that."""
    for name in ("checkpoint-8", "checkpoint-99"):
        shutil.copytree(whole / "checkpoint-8", output / name)


@pytest.mark.parametrize("launcher", [pytest.param("launch", marks=pytest.mark.versions), "torchrun"])
def test_a_restarted_script_goes_on_by_itself(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], launcher: str
) -> None:
    """Rank 0 is killed while it saves its third checkpoint; the folder has checkpoints of an earlier run too.

    Of torchrun's two agents only the one whose rank was killed counts the restart.
    """
    output = tmp_path / "out"
    _earlier_run(whole[0], output)
    script = [str(SCRIPTS / "killed.py"), "open", "/checkpoint-6/trainer_state.json", "--dropout"]
    script += ["--output_dir", str(output), *_WORDS, *_EIGHT]
    if launcher == "launch":
        result = run(launch("--nproc", "2", "--max-restarts", "1", "--", "--backend", "ccl", *script), 2 * BOUND)
    else:
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
        agent = shlex.join(["torchrun", "--nnodes", "2", "--max-restarts", "1", *meet, "--no-python", *train(*script)])
        both = f"{agent} & one=$!; {agent}; two=$?; wait $one && exit $two"
        result = run(["bash", "-c", both], timeout=2 * BOUND)
    assert result.returncode == 0, result.output
    assert result.stderr.count(f"cpudist: restart 1: going on from {output}/checkpoint-4\n") == 1, result.output
    _is_like(json.loads((output / "found.json").read_text()), whole[1])
    assert [path.name for path in output.iterdir() if path.is_dir()] == ["checkpoint-8"], "the newest, by its making"


def test_a_run_that_is_killed_before_it_has_begun_takes_no_other_runs_checkpoint(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    output = tmp_path / "out"
    _earlier_run(whole[0], output)
    script = [str(SCRIPTS / "killed.py"), "import", "transformers", "--output_dir", str(output), *_WORDS]
    result = run(launch("--nproc", "2", "--max-restarts", "1", "--", *script, "--max_steps", "2"), 2 * BOUND)
    assert result.returncode == 0, result.output
    said = f"cpudist: restart 1: no checkpoint of this run in {output} yet, starting from the beginning\n"
    assert result.stderr.count(said) == 1, result.output
    found = json.loads((output / "found.json").read_text())
    assert len(found["losses"]) == 2
    assert found["losses"][0] == pytest.approx(0.69, abs=0.1)


def test_when_a_script_does_not_go_on_by_itself(tmp_path: Path) -> None:
    """After its last step it makes none more; what the script names wins; and `--resume never`.

    Checksums are compared wherever it goes on.
    """
    output, going_on = tmp_path / "out", "cpudist: started again: going on from"
    words = ["--output_dir", str(output), *_WORDS, "--max_steps", "5", "--save_steps", "2"]

    def start(options: list[str], *more: str) -> tuple[Result, list[float]]:
        command = train("--backend", "gloo", *options, str(SCRIPTS / "course.py"), *words, *more)
        result = run(command, timeout=BOUND, env={"CPUDIST_RUN_ID": "the run"})
        assert result.returncode == 0, result.output
        return result, json.loads((output / "found.json").read_text())["losses"]

    first, losses = start([])
    assert going_on not in first.stderr
    made = json.loads((output / "checkpoint-4" / "checkpoint.json").read_text())
    assert (made["runs"], made["trainer"]["training"]) == (["the run"], 0)
    again, losses_then = start([])
    assert again.stderr.count(f"{going_on} {output}/checkpoint-5\n") == 1, again.output
    assert losses_then == losses
    damaged = output / "checkpoint-5" / "optimizer.pt"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    before, losses_then = start([])
    said = "is damaged: optimizer.pt has another checksum than when it was written; trying the one before\n"
    assert f"cpudist: warning: {damaged.parent} {said}" in before.stderr, before.output
    assert before.stderr.count(f"{going_on} {output}/checkpoint-4\n") == 1, before.output
    assert losses_then == pytest.approx(losses, abs=1e-5)
    (output / "checkpoint-2" / "training_args.bin").write_bytes(b"")
    named, losses_then = start([], "--resume_from_checkpoint", str(output / "checkpoint-2"))
    assert going_on not in named.stderr
    assert "checkpoint-2 is damaged: training_args.bin has 0 bytes instead of" in named.stderr, "named, and taken"
    assert losses_then == pytest.approx(losses, abs=1e-5)
    shutil.rmtree(output / "checkpoint-2")
    anew, losses_then = start(["--resume", "never"])
    assert going_on not in anew.stderr
    assert losses_then == pytest.approx(losses, abs=1e-5)
    assert (output / "checkpoint-2").is_dir()


def test_goes_on_with_the_same_samples_on_fewer_and_more_ranks(tmp_path: Path) -> None:
    """The step is in the second of the epochs of 17 steps; on one rank, batches of 6 are accumulated.

    So the loss and the metrics do not depend on the number of ranks, nor on accumulation. Trainer alone would report
    two and three times the loss: this model ignores num_items_in_batch.
    """
    words = ["--per_device_train_batch_size", "6", "--max_steps", "40", "--save_steps", "20"]
    whole = _train(2, tmp_path / "2", ["course.py"], *words)
    assert (whole["backend"], whole["wrapped"], len(whole["losses"])) == ("ccl", "DistributedDataParallel", 40)
    assert whole["losses"][-1] < 0.8 * whole["losses"][0]
    assert whole["losses"][0] == pytest.approx(0.69, abs=0.1), "log(2), without knowledge"
    words += ["--resume_from_checkpoint", str(tmp_path / "2" / "checkpoint-20")]
    for ranks, change in (
        (1, "--per_device_train_batch_size 6 --gradient_accumulation_steps 2"),
        (3, "--per_device_train_batch_size 4 --gradient_accumulation_steps 1"),
    ):
        resumed = _train(ranks, tmp_path / str(ranks), ["course.py"], *words)
        assert resumed["losses"] == pytest.approx(whole["losses"], abs=2e-4), "transformers 4 rounds them to 1e-4"
        assert resumed["rates"] == whole["rates"]
        assert resumed["metrics"]["eval_accuracy"] == whole["metrics"]["eval_accuracy"]
        said = f"12 samples in a step, as on the 2 ranks that it was begun with; going on with as many at {ranks}: "
        assert resumed["stderr"].count(said + change) == 1
    asked = _train(1, tmp_path / "asked", ["course.py"], *words, "--per_device_train_batch_size", "12")
    assert asked["losses"] == pytest.approx(whole["losses"], abs=2e-4), "not with the 6 of the checkpoint"
    assert "going on with as many" not in asked["stderr"]


@pytest.mark.versions
def test_goes_on_with_unequal_shares_and_the_same_samples(tmp_path: Path) -> None:
    """32 samples in a step, 4 ranks, then 3 and 3 again; the step is in the second of the epochs of 7 steps.

    The same samples are seen at the same learning rate, those that fill up the last step of an epoch too.
    """
    words = ["--per_device_train_batch_size", "8", "--max_steps", "17", "--save_steps", "5"]

    def train(ranks: int, name: str, *more: str) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
        found = _train(ranks, tmp_path / name, ["seen.py", str(tmp_path / f"{name}.seen")], *words, *more)
        return found, json.loads((tmp_path / f"{name}.seen").read_text())

    whole, seen = train(4, "4")
    assert all(sum(samples.values()) == 32 for samples in seen.values())
    assert len(set().union(*(seen[str(step)] for step in range(7)))) == 204, "an epoch has all samples"
    for name, checkpoint in (("3", "4/checkpoint-10"), ("again", "3/checkpoint-15")):
        resumed, seen_then = train(3, name, "--resume_from_checkpoint", str(tmp_path / checkpoint))
        assert list(seen_then) == [str(step) for step in range(int(checkpoint.rpartition("-")[2]), 17)]
        assert seen_then == {step: seen[step] for step in seen_then}
        assert resumed["rates"] == whole["rates"]
        assert resumed["losses"] == pytest.approx(whole["losses"], abs=2e-4), "transformers 4 rounds them to 1e-4"
        said = "as on the 4 ranks that it was begun with; going on with as many at 3, 10 or 11 each: "
        said += "--per_device_train_batch_size 6 --gradient_accumulation_steps 2\n"
        assert resumed["stderr"].count(f"{checkpoint} has 32 samples in a step, {said}") == 1
    record = json.loads((tmp_path / "again.json").read_text())  # of two steps, the first of which does not count
    assert record["samples_per_second"] * record["step_seconds"]["median"] == pytest.approx(32, rel=1e-4)


@pytest.mark.parametrize(
    ("target", "name", "status"),
    [pytest.param("1", "SIGTERM", 143, marks=pytest.mark.versions), ("0", "SIGINT", 130), ("command", "SIGUSR1", 138)],
)
def test_a_signal_stops_all_ranks_after_a_checkpoint(tmp_path: Path, target: str, name: str, status: int) -> None:
    """A rank or `cpudist launch` gets it. The script's callbacks see it, although the job's own stand before them."""
    output, script = tmp_path / "out", ["signalled.py", target, name]
    words = ["--max_steps", "1000000", "--save_steps", "1000000", "--dataloader_num_workers", "1"]
    result = _start(2, output, script, *words, options=("--checkpoint-on-signal",), launched=target == "command")
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


def test_a_full_disk_ends_the_job_and_earlier_checkpoints_stay_whole(tmp_path: Path, small_disk: Path) -> None:
    output = small_disk / "out"
    result = _start(2, output, ["course.py"], "--max_steps", "1000", "--save_steps", "1")
    assert result.returncode == 2, result.output
    lines = [line for line in result.report.splitlines() if "cpudist: " in line]
    assert len(lines) == 1, result.output
    whole = checkpoints(output)
    assert 0 < len(whole) < 1000
    assert f"cannot save {output}/checkpoint-{len(whole) + 1}: the disk at {small_disk} is full (" in lines[0], (
        result.output
    )
    assert f"checkpoint-{len(whole)} is complete" in lines[0], result.output
    for checkpoint in whole.values():
        _load(checkpoint, ranks=2)
    assert sorted(path.name for path in output.iterdir() if path.is_dir()) == sorted(
        path.name for path in whole.values()
    )
