"""Ranks that do not fit together, or do not come, without a job."""

import re
import sys

import pytest
from checks_run import JOBS, only, run

from cpudist.topology.identity import free_port

pytestmark = pytest.mark.job


@pytest.mark.parametrize(
    ("what", "told", "words"),
    [
        ("counts", {0, 1, 2}, "rank 0 sends 4 bytes to rank 1, which expects 20"),
        ("gather", {0, 1, 2}, "the share of rank 2 has 1 elements, but rank 0 expects 5"),
        ("scatter", {0, 1, 2}, "the share of rank 2 has 1 elements, but rank 0 expects 2"),
        ("types", {0, 1}, r"all_gather of 6 (int64 .* of 6 float32|float32 .* of 6 int64) "),
        ("moved_types", {0, 1}, r"all_gather of 6 (bool .* of 6 float8_e5m2|float8_e5m2 .* of 6 bool) "),
        ("left", {0}, r"all_reduce .*rank 1 has left the group \(destroy_process_group\)"),
    ],
)
def test_ranks_that_do_not_fit_together_get_one_error(what: str, told: set[int], words: str) -> None:
    """Different counts over oneCCL or MPI; shared memory by itself: the scenario `counts` of shared_memory/."""
    transport = {"counts": "oneccl", "gather": "oneccl", "scatter": "mpi-alone"}.get(what, "shared_memory")
    name = "intel-mpi, 2 ranks" if transport == "shared_memory" else "intel-mpi, 3 ranks"
    result = run(JOBS[name], "disagree.py", what, timeout=100, **only(transport))
    assert result.returncode != 0
    found = re.finditer(rf"rank (?P<rank>\d) after .*?{words}", result.stdout)
    assert {int(match["rank"]) for match in found} == told, result.output


@pytest.mark.parametrize(
    ("name", "transport", "what"),
    [
        ("intel-mpi, 2 ranks", "shared_memory", "never"),
        ("intel-mpi, 3 ranks", "oneccl", "never"),
        ("intel-mpi, 3 ranks", "oneccl", "wrapped"),
    ],
)
def test_a_group_has_a_timeout_of_its_own(name: str, transport: str, what: str) -> None:
    """Also where nobody waits but in `is_completed`, and where it is set through torch's wrapper."""
    variables = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if what == "wrapped" else {}
    result = run(JOBS[name], "disagree.py", what, timeout=60, **variables, **only(transport))
    found = re.findall(r"rank \d after [\d.]+ s: ccl: all_reduce #\d+ .* timed out after 5\.", result.stdout)
    assert len(found) == int(name.split()[-2]) - 1, result.output


def test_a_killed_peer_is_noticed_without_a_job() -> None:
    """Ranks that no launcher started, so nothing but the group can end them."""
    start = 'for r in 0 1 2; do RANK=$r "$@" & done; wait'
    variables = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    result = run(["bash", "-c", start, "bash", sys.executable], "disagree.py", "killed", timeout=60, **variables)
    found = re.findall(r"rank \d after ([\d.]+) s: .*rank 1 has ended or has left the group", result.stdout)
    assert len(found) == 2, result.output
    assert all(float(seconds) < 5 for seconds in found), result.output
