"""The examples of loops of one's own, on two ranks."""

import re
import sys
from pathlib import Path

import pytest
import torch
from jobs import completed, mpirun, train

pytestmark = pytest.mark.job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Runs local_sgd.py, and saves the first parameter before and after each average, and all parameters at the end.
NOTES_AVERAGES = f"""
import runpy, sys, torch, torch.distributed as dist
from torch.distributed.algorithms.model_averaging import averagers, utils
found = []
average = utils.average_parameters_or_parameter_groups
def noting(parameters, group):
    before = next(iter(parameters := list(parameters))).detach().clone()
    average(parameters, group)
    found.append((before, parameters[0].detach().clone()))
utils.average_parameters_or_parameter_groups = noting
folder = sys.argv.pop(1)
rank = int(__import__("os").environ["PMI_RANK"])
model = runpy.run_path({str(EXAMPLES / "local_sgd.py")!r}, run_name="example")["main"]()
torch.save((found, model.state_dict()), f"{{folder}}/{{rank}}")
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
    result = completed(mpirun(2, sys.executable, "-c", NOTES_AVERAGES, str(tmp_path), *words), timeout=120)
    found = re.search(r"held-out loss (\S+)", result.stdout)
    assert found, result.output
    assert float(found[1]) < 4
    (of_0, model_0), (of_1, model_1) = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert len(of_0) == len(of_1) == 3, "after steps 100, 108 and 116"
    for (before_0, after_0), (before_1, after_1) in zip(of_0[1:], of_1[1:], strict=True):
        assert not torch.equal(before_0, before_1), "ranks have trained apart"
        torch.testing.assert_close(after_0, (before_0 + before_1) / 2)
        assert torch.equal(after_0, after_1)
    assert all(torch.equal(model_0[name], model_1[name]) for name in model_0)
