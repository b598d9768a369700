"""Compiling for real: once, whoever comes at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.job


def test_two_at_once_compile_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cpudist", "build", "--output", str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum(errors.count("compiling the ccl backend") for _, errors in outputs) == 1, outputs
    assert len(list(tmp_path.glob("*/*/cpudist_ccl.so"))) == 1
