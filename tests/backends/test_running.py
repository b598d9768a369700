"""Backends in running jobs: the calls that ranks wait in, PowerSGD, and accelerator on the device of stand_in.py."""

import re
import sys
import time
from pathlib import Path

import pytest
import torch
from jobs import completed, mpirun, run, train

from cpudist.backends import gloo
from cpudist.backends.process_group import GroupRanks

CHECKS = Path(__file__).parent / "checks"
STAND_IN = [sys.executable, str(CHECKS / "stand_in.py")]
LOOP = str(Path(__file__).parents[2] / "examples" / "one_program.py")
BOUND = 600.0  # the device is compiled once
_GLOO_RECORDS = (2, 9)  # torch from this version on


@pytest.mark.versions
@pytest.mark.job
@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_another_thread_sees_what_a_rank_waits_in(backend: str) -> None:
    if backend == "gloo" and tuple(map(int, torch.__version__.split(".")[:2])) < _GLOO_RECORDS:
        pytest.skip("gloo of this torch records nothing")
    completed(mpirun(3, sys.executable, str(CHECKS / "calls.py"), backend), timeout=90)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@pytest.mark.parametrize("look", [0, 1])
def test_a_clock_that_is_set_makes_no_call_last_long(step: float, look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's flight recorder uses the wall clock, which may be set before the first look or before the second."""
    entry = {"process_group": ["0", "default"], "is_p2p": False, "retired": False, "output_dtypes": []}
    entry |= {"output_sizes": [], "profiling_name": "gloo:all_reduce", "collective_seq_id": 1}
    entry["time_created_ns"] = time.time_ns()
    dump = {"pg_status": {"0": 1}, "entries": [entry]}
    monkeypatch.setattr(gloo, "_recorded", lambda calls: dump)
    monkeypatch.setattr(gloo, "groups", lambda: {"0": GroupRanks("", None)})
    backend, real = gloo.GlooBackend(), time.time
    for number in range(2):
        if number == look:
            monkeypatch.setattr(time, "time", lambda: real() + step)
        found = backend.calls()
    assert found.under_way[0].seconds < 60


@pytest.mark.job
@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_powersgd_with_several_buckets_leaves_ranks_equal(backend: str) -> None:
    completed(mpirun(2, *train("--backend", backend, str(CHECKS / "powersgd.py"), backend)), timeout=120)


@pytest.mark.job
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_of_the_readme_has_the_same_losses(tmp_path: Path, ranks: int) -> None:
    command = [*STAND_IN, LOOP, str(tmp_path), "gloo", "accelerator"]
    result = completed(mpirun(ranks, *command) if ranks > 1 else command, timeout=BOUND)
    losses = [float(text) for text in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 40, result.output
    assert losses[20:] == pytest.approx(losses[:20], abs=1e-4)


@pytest.mark.job
def test_batches_are_on_the_device_and_autocast_has_an_effect_there(tmp_path: Path) -> None:
    result = completed([*STAND_IN, str(CHECKS / "on_accelerator.py"), str(tmp_path), "auto", "accelerator"], BOUND)
    assert "2 STAND_IN devices of this machine idle (--backend accelerator)" in result.stderr, result.output
    assert result.stdout.splitlines()[-3:] == [
        "computed in torch.bfloat16",
        "accelerator stand_in:0 text torch.float32",
        "cpu:gloo,stand_in:stand_in_dist stand_in_dist 2 STAND_IN devices",
    ], result.output


@pytest.mark.job
def test_more_ranks_than_devices_are_refused_also_where_there_is_none(tmp_path: Path) -> None:
    result = run(mpirun(3, *STAND_IN, LOOP, str(tmp_path), "accelerator"), BOUND)
    assert result.returncode == 2, result.output
    assert "has 3 ranks and 2 STAND_IN devices" in result.stderr, result.output
    if not torch.accelerator.is_available():
        result = run(train("--backend", "accelerator", LOOP, "out"), BOUND)
        assert result.returncode == 2, result.output
        assert result.stderr.count("\n") == 1
        assert "finds no accelerator" in result.stderr
