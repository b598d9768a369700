"""Checkpoints of one's own loops in jobs: on other numbers of ranks, other backends, and after a kill."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import BIN, Result, mpirun, run

pytestmark = pytest.mark.job

CHECK = str(Path(__file__).parent / "checks" / "loop.py")


def _passed(result: Result, steps: int) -> bool:
    return result.returncode == 0 and f"{steps} steps passed" in result.stdout and "Warning" not in result.stderr


def test_goes_on_with_other_ranks_and_on_another_backend(tmp_path: Path) -> None:
    for backend, ranks, steps in (("ccl", 2, 2), ("gloo", 3, 4), ("ccl", 1, 6)):
        command = mpirun(ranks, sys.executable, CHECK, str(tmp_path), str(steps))
        result = run(command, timeout=100, env={"CHECK_INIT": json.dumps({"backend": backend, "pin": False})})
        assert _passed(result, steps), result.output
        assert (f"going on from {tmp_path}/plain/checkpoint-{steps - 2}" in result.stderr) == (steps > 2)


@pytest.mark.versions
@pytest.mark.skipif(find_spec("torch_xla") is None, reason="there is no torch_xla for this torch")
def test_goes_on_from_a_mesh_and_on_devices(tmp_path: Path) -> None:
    starts = ((1, {"backend": "xla", "mesh": "data=2,model=2"}), (2, {"backend": "gloo"}), (2, {"backend": "xla"}))
    for number, (ranks, options) in enumerate(starts, 1):
        command = mpirun(ranks, sys.executable, CHECK, str(tmp_path), str(2 * number))
        result = run(command, timeout=150, env={"CHECK_INIT": json.dumps({**options, "pin": False})})
        assert result.returncode == 0, result.output
        assert f"{2 * number} steps passed" in result.stdout, result.output
        if number > 1:
            assert f"going on from {tmp_path}/plain/checkpoint-{2 * number - 2}" in result.stderr, result.output


def test_killed_while_saving_it_goes_on_from_the_newest_complete_one(tmp_path: Path) -> None:
    command = [str(BIN / "cpudist"), "launch", "--nproc", "2", "--max-restarts", "2", "--", "--backend", "ccl"]
    result = run([*command, CHECK, str(tmp_path), "6", "4"], timeout=150)
    assert _passed(result, 6), result.output
    assert f"restart 1: going on from {tmp_path}/plain/checkpoint-3" in result.stderr, result.output
    assert f"restart 1: no checkpoint of this run in {tmp_path}/fsdp yet" in result.stderr, result.output
    assert f"restart 2: going on from {tmp_path}/fsdp/checkpoint-3" in result.stderr, result.output
    for kind in ("plain", "fsdp"):
        assert sorted(path.name for path in (tmp_path / kind).iterdir()) == ["checkpoint-5", "checkpoint-6"]

    # Another run does not begin anew beside these.
    again = [str(BIN / "cpudist"), "launch", "--nproc", "1", "--", CHECK, str(tmp_path), "7"]
    result = run(again, timeout=100)
    assert result.returncode == 2, result.output
    found = re.search(f"{tmp_path}/plain holds checkpoints of an earlier run.* CPUDIST_RUN_ID=(\\w+)", result.stderr)
    assert found, result.output
    result = run(again, timeout=100, env={"CPUDIST_RUN_ID": found[1]})
    assert _passed(result, 7), result.output
