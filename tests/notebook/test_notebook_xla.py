"""`notebook_launcher(backend="xla")`: one process with all devices of this machine, or several with one each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from jobs import run

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

SCRIPT = str(Path(__file__).with_name("checks") / "on_xla.py")


@pytest.mark.parametrize(
    ("processes", "devices", "found"), [(1, 4, "(1, 4, 'xla:0', 3.0)"), (2, 1, "(2, 1, 'xla:0', 9.0)")]
)
def test_ranks_have_the_devices(processes: int, devices: int, found: str) -> None:
    result = run([sys.executable, SCRIPT, str(processes)], timeout=120, env={"CPU_NUM_DEVICES": str(devices)})
    assert result.returncode == 0, result.output
    assert result.stdout.splitlines()[-1] == found, result.output
