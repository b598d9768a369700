"""A signal to `cpudist launch` with `--checkpoint-on-signal`: all ranks save a checkpoint, and the job ends."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import jobs
import pytest
import torch
from safetensors.torch import load_file

from cpudist.huggingface.restart_point import checkpoints

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parents[1] / "huggingface" / "checks" / "course.py"
BOUND = 30  # seconds from the signal to the end: 5 and the checkpoint, on a machine that has other things to do

INTERRUPTED = """
import subprocess, sys, time
from pathlib import Path
number, bound, stdout, *command = sys.argv[1:]
with open(stdout, "w") as file:
    launch = subprocess.Popen(command, stdout=file)
while "'loss'" not in Path(stdout).read_text() and launch.poll() is None:
    time.sleep(0.05)
launch.send_signal(int(number))
sys.exit(launch.wait(float(bound)))
"""


@pytest.mark.parametrize(
    ("number", "taken_as"),
    [
        (signal.SIGUSR1, "SIGUSR1"),
        (signal.SIGHUP, "SIGTERM"),
    ],
)
def test_a_checkpoint_and_no_restart(number: signal.Signals, taken_as: str, tmp_path: Path) -> None:
    """The exit status is the signal's; `jobs.run` checks that no process is left."""
    output, record = tmp_path / "out", tmp_path / "record.json"
    words = ["--output_dir", output, "--do_train", "--report_to", "none", "--no_cuda", "--disable_tqdm", "true"]
    words += ["--max_steps", "1000000", "--save_strategy", "steps", "--save_steps", "1000000", "--logging_steps", "1"]
    train = ["--backend", "ccl", "--record", record, "--checkpoint-on-signal", SCRIPT, *words]
    launch = [jobs.BIN / "cpudist", "launch", "--nproc", "2", "--max-restarts", "1", "--", *train]
    wrapped = [sys.executable, "-c", INTERRUPTED, int(number), BOUND, tmp_path / "stdout", *launch]
    result = jobs.run(list(map(str, wrapped)), timeout=150)
    assert result.returncode == 128 + number, result.output
    assert "starting again" not in result.stderr
    ((step, checkpoint),) = checkpoints(output).items()
    assert f"cpudist: {taken_as}: saved {checkpoint}; ending the job\n" in result.stderr
    assert load_file(checkpoint / "model.safetensors")
    assert torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    assert json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == step
    assert [path.name for path in output.iterdir() if path.is_dir()] == [checkpoint.name], (
        "nothing is left half written"
    )
    found = json.loads(record.read_text())
    assert (found["exit"], found["steps"]) == ("interrupted", step)
