"""The command of the README's first screen. tests/backends/xla compares its program on every backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import mpirun, run, train

pytestmark = pytest.mark.job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "one_program.py"


def test_the_first_command_learns(tmp_path: Path) -> None:
    result = run(mpirun(2, *train(str(EXAMPLE), str(tmp_path / "out"))), timeout=120)
    assert result.returncode == 0, result.output
    losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 20
    assert losses[-1] < losses[0]
    assert list((tmp_path / "out").iterdir())
