"""Checkpoints of one's own loops in jobs: on other numbers of ranks, other backends, and after a kill."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from jobs import Result, launch, mpirun, run

pytestmark = pytest.mark.job

CHECK = str(Path(__file__).parent / "checks" / "loop.py")


def _passed(result: Result, steps: int) -> bool:
    return result.returncode == 0 and f"{steps} steps passed" in result.stdout


ON_CPUS = ((2, {"backend": "ccl"}), (3, {"backend": "gloo"}), (1, {"backend": "ccl"}))
ON_DEVICES = ((1, {"backend": "xla", "mesh": "data=2,model=2"}), (2, {"backend": "gloo"}), (2, {"backend": "xla"}))
XLA = [pytest.mark.versions, pytest.mark.skipif(find_spec("torch_xla") is None, reason="torch_xla is not installed")]


@pytest.mark.parametrize("starts", [ON_CPUS, pytest.param(ON_DEVICES, marks=XLA)], ids=["on CPUs", "on devices"])
def test_goes_on_with_other_ranks_and_on_another_backend(tmp_path: Path, starts: Any) -> None:
    for number, (ranks, options) in enumerate(starts, 1):
        command = mpirun(ranks, sys.executable, CHECK, str(tmp_path), str(2 * number))
        result = run(command, timeout=150, env={"CHECK_INIT": json.dumps({**options, "pin": False})})
        assert _passed(result, 2 * number), result.output
        assert starts is ON_DEVICES or "Warning" not in result.stderr, result.output
        said = f"going on from {tmp_path}/plain/checkpoint-{2 * number - 2}"
        assert (said in result.stderr) == (number > 1), result.output


def test_killed_while_saving_it_goes_on_from_the_newest_complete_one(tmp_path: Path) -> None:
    options = ["--nproc", "2", "--max-restarts", "2", "--", "--backend", "ccl"]
    result = run(launch(*options, CHECK, str(tmp_path), "6", "4"), timeout=150)
    assert _passed(result, 6), result.output
    assert f"restart 1: going on from {tmp_path}/plain/checkpoint-3" in result.stderr, result.output
    assert f"restart 1: no checkpoint of this run in {tmp_path}/fsdp yet" in result.stderr, result.output
    assert f"restart 2: going on from {tmp_path}/fsdp/checkpoint-3" in result.stderr, result.output
    for kind in ("plain", "fsdp"):
        assert sorted(path.name for path in (tmp_path / kind).iterdir()) == ["checkpoint-5", "checkpoint-6"]
