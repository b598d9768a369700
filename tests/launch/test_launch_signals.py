"""A signal to `cpudist launch` with `--checkpoint-on-signal`: a checkpoint, and that was it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import jobs
import pytest

from cpudist.huggingface.checkpoint_files import checkpoints
from cpudist.waiting import poll

SCRIPT = Path(__file__).parents[1] / "huggingface" / "scripts" / "course.py"


@pytest.mark.parametrize(("number", "taken_as"), [(signal.SIGUSR1, "SIGUSR1"), (signal.SIGHUP, "SIGTERM")])
def test_a_checkpoint_and_no_restart(number: signal.Signals, taken_as: str, tmp_path: Path) -> None:
    output, record = tmp_path / "out", tmp_path / "record.json"
    words = ["--output_dir", output, "--do_train", "--report_to", "none", "--no_cuda", "--disable_tqdm", "true"]
    words += ["--max_steps", "1000000", "--save_strategy", "steps", "--save_steps", "1000000", "--logging_steps", "1"]
    train = ["--backend", "ccl", "--record", record, "--checkpoint-on-signal", SCRIPT, *words]
    command = [jobs.BIN / "cpudist", "launch", "--nproc", "2", "--max-restarts", "1", "--", *train]
    stdout = tmp_path / "stdout"
    with (
        stdout.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, env=jobs.environment(), text=True) as launch,
    ):
        try:
            assert poll(lambda: "'loss'" in stdout.read_text(), 90)
            launch.send_signal(number)
            _, said = launch.communicate(timeout=60)
        finally:
            launch.terminate()
    assert launch.returncode == 128 + number, said
    assert "starting again" not in said
    ((step, checkpoint),) = checkpoints(output).items()
    assert f"cpudist: {taken_as}: saved {checkpoint}; ending the job\n" in said
    assert (checkpoint / "optimizer.pt").exists()
    found = json.loads(record.read_text())
    assert (found["exit"], found["steps"]) == ("interrupted", step)
