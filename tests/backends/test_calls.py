"""`Backend.calls` while a rank waits in a call."""

import sys
import time
from pathlib import Path

import pytest
import torch
from jobs import completed, mpirun

from cpudist.backends import gloo
from cpudist.backends.interface import Calls
from cpudist.backends.process_group import GroupRanks

CHECK = Path(__file__).parent / "checks" / "calls.py"
_GLOO_RECORDS = (2, 9)  # torch from this version on


@pytest.mark.versions
@pytest.mark.job
@pytest.mark.parametrize("backend", ["ccl", "gloo"])
def test_another_thread_sees_what_a_rank_waits_in(backend: str) -> None:
    if backend == "gloo" and tuple(map(int, torch.__version__.split(".")[:2])) < _GLOO_RECORDS:
        pytest.skip("gloo of this torch records nothing")
    completed(mpirun(3, sys.executable, str(CHECK), backend), timeout=90)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
@pytest.mark.parametrize("when", ["before the look", "after the look"])
def test_a_clock_that_is_set_makes_no_call_last_for_an_hour(
    step: float, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo's flight recorder uses the wall clock, which may be set."""
    entry = {"process_group": ["0", "default"], "is_p2p": False, "retired": False, "output_dtypes": []}
    entry |= {"output_sizes": [], "profiling_name": "gloo:all_reduce", "collective_seq_id": 1}
    entry["time_created_ns"] = time.time_ns()
    dump = {"pg_status": {"0": 1}, "entries": [entry]}
    monkeypatch.setattr(gloo, "_recorded", lambda calls: dump)
    monkeypatch.setattr(gloo, "groups", lambda: {"0": GroupRanks("", None)})
    backend, real = gloo.GlooBackend(), time.time
    if when == "after the look":
        assert backend.calls() == Calls()
    monkeypatch.setattr(time, "time", lambda: real() + step)
    if when == "before the look":
        assert backend.calls() == Calls()
    found = backend.calls()
    assert found is not None
    assert found.under_way[0].seconds < 60
