"""Ways to leave a job, or a group."""

from pathlib import Path

import pytest
from checks_run import JOBS, only, run, run_all

pytestmark = pytest.mark.job


def test_a_forked_child_is_no_rank_and_what_was_sent_arrives_after_the_sender_has_left() -> None:
    result = run_all(JOBS["torchrun, 2 ranks"], "leaving.py fork", "leaving.py send", **only("oneccl"))
    assert result.stdout.count("child: ccl: communication is out of use") == 4, result.output
    assert result.stdout.count("parent left") == 2, result.output
    assert "received" in result.stdout, result.output


def test_a_child_that_a_rank_spawns_is_not_that_rank(tmp_path: Path) -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "leaving.py", "spawn", str(tmp_path / "store"), timeout=200)
    assert result.returncode == 0, result.output
    assert result.stdout.count("has summed") == 2, result.output


@pytest.mark.parametrize(
    ("name", "transport"),
    [
        pytest.param("intel-mpi, 2 ranks", "shared_memory", marks=pytest.mark.versions),
        ("torchrun, 2 ranks", "oneccl"),
    ],
)
def test_aborting_ends_what_a_rank_waits_for(name: str, transport: str) -> None:
    """Long before the job's timeout of 300 s; and the rank, whose communication is out of use then, has failed."""
    result = run(JOBS[name], "leaving.py", "abort_waiting", timeout=150, **only(transport))
    assert result.returncode != 0
    assert "caught: ccl: all_reduce #2 of group '0' on rank 0 of" in result.stdout, result.output
    assert "was aborted" in result.stdout, result.output
    assert "again: ccl: communication is out of use in this process: all_reduce #2" in result.stdout, result.output


def test_aborting_where_nothing_is_under_way_harms_nothing() -> None:
    result = run(JOBS["intel-mpi, 3 ranks"], "leaving.py", "abort_idle", timeout=200, **only("oneccl"))
    assert result.returncode == 0, result.output
    assert result.stdout.count("left") == 3, result.output
