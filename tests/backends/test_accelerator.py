"""The backend accelerator, on a device of torch's PrivateUse1 with a process group of its own."""

import re
import sys
from pathlib import Path

import pytest
import torch
from jobs import completed, mpirun, run, train

pytestmark = pytest.mark.job

CHECKS = Path(__file__).parent / "checks"
STAND_IN = [sys.executable, str(CHECKS / "stand_in.py")]
LOOP = str(Path(__file__).parents[2] / "examples" / "one_program.py")
BOUND = 600.0  # the device is compiled once


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_of_the_readme_has_the_same_losses(tmp_path: Path, ranks: int) -> None:
    command = [*STAND_IN, LOOP, str(tmp_path), "gloo", "accelerator"]
    result = completed(mpirun(ranks, *command) if ranks > 1 else command, timeout=BOUND)
    losses = [float(text) for text in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 40, result.output
    assert losses[20:] == pytest.approx(losses[:20], abs=1e-4)


def test_batches_are_on_the_device_and_autocast_has_an_effect_there(tmp_path: Path) -> None:
    result = completed([*STAND_IN, str(CHECKS / "on_accelerator.py"), str(tmp_path), "auto", "accelerator"], BOUND)
    assert "2 STAND_IN devices of this machine idle (--backend accelerator)" in result.stderr, result.output
    assert result.stdout.splitlines()[-3:] == [
        "computed in torch.bfloat16",
        "accelerator stand_in:0 text torch.float32",
        "cpu:gloo,stand_in:stand_in_dist stand_in_dist 2 STAND_IN devices",
    ], result.output


def test_more_ranks_than_devices_are_refused(tmp_path: Path) -> None:
    result = run(mpirun(3, *STAND_IN, LOOP, str(tmp_path), "accelerator"), BOUND)
    assert result.returncode == 2, result.output
    assert "has 3 ranks and 2 STAND_IN devices" in result.stderr, result.output


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_a_device_the_job_ends_in_one_line() -> None:
    result = run(train("--backend", "accelerator", LOOP, "out"), BOUND)
    assert result.returncode == 2, result.output
    assert result.stderr.count("\n") == 1
    assert "finds no accelerator" in result.stderr
