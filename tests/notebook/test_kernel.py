"""Cells of a real Jupyter kernel: the example from its first cell to its last, and one that is interrupted."""

import re
import sys
from pathlib import Path

import pytest
from jobs import completed

from cpudist.optimization.precision import has_bf16

pytestmark = pytest.mark.job

CHECKS = Path(__file__).parent / "checks"


def test_the_example_is_executed() -> None:
    result = completed([sys.executable, str(CHECKS / "execute.py"), "2"], timeout=170)
    found = re.search(r"2 processes, accuracy ([\d.]+)", result.stdout)
    assert found, result.output
    assert float(found[1]) > 0.8
    assert result.stdout.count("of 360 digits right") == 4, "rank 0 alone prints"
    assert len(re.findall(r"epoch 3: +\d+%", result.stderr)) > 1, "the progress bar is drawn as it goes"


def test_the_cells_of_accelerates_tutorial(tmp_path: Path) -> None:
    result = completed([sys.executable, str(CHECKS / "execute.py"), str(CHECKS / "pets.py")], timeout=170, cwd=tmp_path)
    first, *epochs, plot = result.stdout.splitlines()
    assert first == "Launching training on 2 CPUs."
    assert [line.split(":")[0] for line in epochs] == [f"epoch {number}" for number in range(4)], result.output
    format, name = ("bf16", "bfloat16") if has_bf16() else ("no", "float32")
    assert epochs[3] == f"epoch 3: 64 of 64 in {format}"
    assert plot == "display_data of a picture", "rank 0's"
    line = f"cpudist: accelerate has no float16 on CPUs: computing in {name} instead"
    assert result.stderr.count(line) == 1, result.output


def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works() -> None:
    result = completed([sys.executable, str(CHECKS / "interrupt_cells.py"), "1"], timeout=120)
    assert "1 interrupted cells left nothing" in result.stdout
