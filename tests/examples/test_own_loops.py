"""The examples of loops of one's own, on two ranks."""

import re
import sys
from pathlib import Path

import pytest
import torch
from jobs import completed, mpirun, train

pytestmark = pytest.mark.job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Runs local_sgd.py, and saves its parameters.
SAVES = f"""
import os, runpy, sys, torch
folder = sys.argv.pop(1)
model = runpy.run_path({str(EXAMPLES / "local_sgd.py")!r}, run_name="example")["main"]()
torch.save(model.state_dict(), folder + "/" + os.environ["PMI_RANK"])
"""


def test_the_first_command_of_the_readme_learns(tmp_path: Path) -> None:
    """tests/backends/xla compares its program on every backend."""
    result = completed(mpirun(2, *train(str(EXAMPLES / "one_program.py"), str(tmp_path / "out"))), timeout=120)
    losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert list((tmp_path / "out").iterdir())


def test_digits_are_learnt_in_bf16(tmp_path: Path) -> None:
    result = completed(mpirun(2, sys.executable, str(EXAMPLES / "train_digits.py"), str(tmp_path)), timeout=120)
    found = re.search(r"backend='ccl'.*: ([\d.]+)% of 297 digits right", result.stdout)
    assert found, result.output
    assert float(found[1]) > 85
    (line,) = result.stderr.splitlines()
    assert "bfloat16 autocast" in line


def test_ranks_train_apart_and_are_averaged(tmp_path: Path) -> None:
    words = ["--every", "8", "--group", "1", "--steps", "121"]
    result = completed(mpirun(2, sys.executable, "-c", SAVES, str(tmp_path), *words), timeout=120)
    found = re.search(r"held-out loss (\S+)", result.stdout)
    assert found, result.output
    assert float(found[1]) < 4
    one, two = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
