"""What a rank is doing in communication, asked for while it does it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from jobs import mpirun, run

CHECK = Path(__file__).parent / "checks" / "calls.py"
_GLOO_RECORDS = (2, 9)  # torch from then on


@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_another_thread_sees_what_a_rank_waits_in(backend: str) -> None:
    if backend == "gloo" and tuple(map(int, torch.__version__.split(".")[:2])) < _GLOO_RECORDS:
        pytest.skip("gloo of this torch records nothing")
    result = run(mpirun(3, sys.executable, str(CHECK), backend), timeout=90)
    assert result.returncode == 0, result.output
