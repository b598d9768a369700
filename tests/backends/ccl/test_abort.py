"""Groups that are aborted."""

from __future__ import annotations

import pytest
from checks_run import JOBS, only, run

pytestmark = pytest.mark.job


@pytest.mark.versions
@pytest.mark.parametrize(
    ("name", "transport"), [("intel-mpi, 3 ranks", "shared_memory"), ("torchrun, 2 ranks", "oneccl")]
)
def test_aborting_ends_what_a_rank_waits_for(name: str, transport: str) -> None:
    """Long before the job's timeout of 300 s; and the rank, whose communication is out of use then, has failed."""
    result = run(JOBS[name], "aborting.py", "waiting", timeout=90, **only(transport))
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #2 of group '0' on rank 0 of" in result.stdout, result.output
    assert "was aborted" in result.stdout, result.output
    assert "again: ccl: communication is out of use in this process: all_reduce #2" in result.stdout, result.output


@pytest.mark.parametrize(
    ("name", "transport"), [("intel-mpi, 3 ranks", "oneccl"), ("torchrun, 2 ranks", "shared_memory")]
)
def test_aborting_where_nothing_is_under_way_harms_nothing(name: str, transport: str) -> None:
    result = run(JOBS[name], "aborting.py", "idle", timeout=90, **only(transport))
    assert result.returncode == 0, result.output
    assert "refused: ccl: all_reduce: the group has been aborted" in result.stdout, result.output
    assert result.stdout.count("left") == int(name.split()[-2]), result.output
