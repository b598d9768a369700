"""PyTorch's completion hooks, and groups that are aborted."""

from __future__ import annotations

import pytest
from checks_run import JOBS, only, run

where = pytest.mark.parametrize(
    ("name", "transport"),
    [("intel-mpi, 2 ranks", "shared_memory"), ("intel-mpi, 3 ranks", "oneccl"), ("torchrun, 2 ranks", "oneccl")],
)


@where
def test_completion_hooks(name: str, transport: str) -> None:
    result = run(JOBS[name], "hooks.py", timeout=120, **only(transport))
    ranks = int(name.split()[-2])
    assert result.returncode == 0, result.output
    assert result.stdout.count("checks of hooks passed") == ranks, result.output
    # The hook that raised three times, on each rank.
    assert result.stderr.count("failed: ValueError: a hook's own error") == ranks, result.output


def test_completion_hooks_with_a_core_to_spare() -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "conditions.py", "hooks.py", timeout=120, CPUDIST_TEST_PROGRESS="polls")
    assert result.returncode == 0, result.output
    assert "progress: polls" in result.stdout, result.output


@where
def test_aborting_ends_what_a_rank_waits_for(name: str, transport: str) -> None:
    """Long before the job's timeout of 300 s; and the rank, whose communication is out of use then, has failed."""
    result = run(JOBS[name], "aborting.py", "waiting", timeout=90, **only(transport))
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #2 of group '0' on rank 0 of" in result.stdout, result.output
    assert "was aborted" in result.stdout, result.output
    assert "again: ccl: communication is out of use in this process: all_reduce #2" in result.stdout, result.output


@where
@pytest.mark.parametrize("what", ["idle", "subgroup"])
def test_aborting_where_nothing_is_under_way_harms_nothing(name: str, transport: str, what: str) -> None:
    result = run(JOBS[name], "aborting.py", what, timeout=90, **only(transport))
    assert result.returncode == 0, result.output
    assert result.stdout.count("left") == int(name.split()[-2]), result.output
    assert (what == "subgroup") == ("refused: ccl: all_reduce: the group has been aborted" in result.stdout)
