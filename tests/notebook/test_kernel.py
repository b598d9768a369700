"""Cells of a real Jupyter kernel: the example from its first cell to its last, and one that is interrupted."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from jobs import run

pytestmark = pytest.mark.job

HERE = Path(__file__).parent


def test_the_example_is_executed() -> None:
    result = run([sys.executable, str(HERE / "checks" / "execute.py"), "2"], timeout=170)
    assert result.returncode == 0, result.output
    found = re.search(r"2 processes, accuracy ([\d.]+)", result.stdout)
    assert found, result.output
    assert float(found[1]) > 0.8
    assert result.stdout.count("of 360 digits right") == 4, "rank 0 alone prints"
    assert len(re.findall(r"epoch 3: +\d+%", result.stderr)) > 1, "the progress bar is drawn as it goes"


def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works() -> None:
    result = run([sys.executable, str(HERE.parents[1] / "tools" / "interrupt_cells.py"), "1"], timeout=120)
    assert result.returncode == 0, result.output
    assert "1 interrupted cells left nothing" in result.stdout
