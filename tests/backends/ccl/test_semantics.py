"""What c10d's backends have in common besides the collectives, over every transport; without a job."""

from __future__ import annotations

import re
import sys

import pytest
from checks_run import JOBS, only, run

from cpudist.topology.identity import free_port

pytestmark = pytest.mark.job

over_each = pytest.mark.parametrize(
    ("name", "transport"), [("intel-mpi, 2 ranks", "shared_memory"), ("intel-mpi, 3 ranks", "oneccl")]
)


@over_each
def test_semantics(name: str, transport: str) -> None:
    result = run(JOBS[name], "semantics.py", timeout=100, **only(transport))
    assert result.returncode == 0, result.output
    assert "checks of semantics passed" in result.stdout, result.output


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("counts", "rank 0 sends 4 bytes to rank 1, which expects 20"),
        ("gather", "the share of rank 2 has 1 elements, but rank 0 expects 5"),
        ("scatter", "the share of rank 2 has 1 elements, but rank 0 expects 2"),
    ],
)
def test_ranks_that_exchange_different_counts_get_one_error(what: str, words: str) -> None:
    """Over oneCCL; shared memory by itself: the scenario `counts` of shared_memory/."""
    result = run(JOBS["intel-mpi, 3 ranks"], "disagree.py", what, timeout=100, **only("oneccl"))
    assert result.returncode != 0
    assert len(re.findall(rf"rank \d after .*?{words}", result.stdout)) == 3, result.output


@pytest.mark.job
@pytest.mark.parametrize(
    ("what", "told", "words"),
    [
        ("types", {0, 1}, r"all_gather of 6 (int64 .* of 6 float32|float32 .* of 6 int64) "),
        ("left", {0}, r"all_reduce .*rank 1 has left the group \(destroy_process_group\)"),
    ],
)
def test_ranks_that_make_different_calls_are_told_those(what: str, told: set[int], words: str) -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "disagree.py", what, timeout=100)
    assert result.returncode != 0
    found = re.finditer(rf"rank (?P<rank>\d) after .*?{words}", result.stdout)
    assert {int(match["rank"]) for match in found} == told, result.output


@over_each
def test_set_timeout_through_torchs_wrapper(name: str, transport: str) -> None:
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", **only(transport)}
    result = run(JOBS[name], "disagree.py", "wrapped", timeout=60, **variables)
    found = re.findall(r"rank \d after ([\d.]+) s: ccl: all_reduce #\d+ .* timed out after 5\.", result.stdout)
    assert len(found) == int(name.split()[-2]) - 1, result.output


@over_each
def test_is_completed_ends_with_the_timeout(name: str, transport: str) -> None:
    result = run(JOBS[name], "disagree.py", "never", timeout=60, **only(transport))
    found = re.findall(r"rank \d after ([\d.]+) s: ccl: all_reduce #\d+ .* timed out after 5\.", result.stdout)
    assert len(found) == int(name.split()[-2]) - 1, result.output


def test_a_killed_peer_is_noticed_without_a_job() -> None:
    """Ranks that no launcher started, so nothing but the group can end them."""
    start = 'for r in 0 1 2; do RANK=$r "$@" & done; wait'
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    result = run(["bash", "-c", start, "bash", sys.executable], "disagree.py", "killed", timeout=60, **variables)
    found = re.findall(r"rank \d after ([\d.]+) s: .*rank 1 has ended or has left the group", result.stdout)
    assert len(found) == 2, result.output
    assert all(float(seconds) < 5 for seconds in found), result.output
