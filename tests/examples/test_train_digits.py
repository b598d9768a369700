"""The example of a loop of one's own: init, optimize in bfloat16, wrap, step, shutdown."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import mpirun, run

pytestmark = pytest.mark.job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"


def test_learns_digits_in_bf16(tmp_path: Path) -> None:
    result = run(mpirun(2, sys.executable, str(EXAMPLE), str(tmp_path)), timeout=120)
    assert result.returncode == 0, result.output
    found = re.search(r"backend='ccl'.*: ([\d.]+)% of 297 digits right", result.stdout)
    assert found, result.output
    assert float(found[1]) > 85
    (line,) = result.stderr.splitlines()
    assert "bfloat16 parameters with float32 master weights" in line
