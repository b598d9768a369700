"""Ways to leave a job, and what carries its messages."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest
from checks_run import JOBS, only, run, run_all

pytestmark = pytest.mark.job

transports = pytest.mark.parametrize("transport", ["shared_memory", "oneccl"])


@pytest.mark.parametrize(
    ("name", "transport"), [("intel-mpi, 2 ranks", "shared_memory"), ("torchrun, 2 ranks", "oneccl")]
)
def test_a_forked_child_is_no_rank_and_what_was_sent_arrives_after_the_sender_has_left(
    name: str, transport: str
) -> None:
    result = run_all(JOBS[name], "leaving.py fork", "leaving.py send", **only(transport))
    assert result.stdout.count("child: ccl: communication is out of use") == 4, result.output
    assert result.stdout.count("parent left") == 2, result.output
    assert "received" in result.stdout, result.output


@transports
def test_a_receive_from_any_source_leaves_nothing_behind(transport: str) -> None:
    result = run(JOBS["intel-mpi, 3 ranks"], "leaving.py", "any_source", timeout=60, **only(transport))
    assert result.returncode == 0, result.output
    assert result.stdout.count("left") == 3, result.output


def test_an_unknown_transport_is_an_error() -> None:
    result = run(JOBS["torchrun, 2 ranks"], "edges.py", timeout=60, CPUDIST_TRANSPORT="pigeon")
    assert result.returncode != 0, result.output
    assert "CPUDIST_TRANSPORT=pigeon is not known" in result.stderr, result.output


def test_the_record_names_what_carried_the_messages(tmp_path: Path) -> None:
    script, record = tmp_path / "script.py", tmp_path / "record.json"
    script.write_text("import torch, torch.distributed as dist\nfor _ in range(5): dist.all_reduce(torch.ones(1000))\n")
    train = jobs.train("--backend", "ccl", "--record", str(record), str(script))
    result = jobs.run(jobs.mpirun(2, *train), 60)
    assert result.returncode == 0, result.output
    assert json.loads(record.read_text())["details"]["carried_by_shared_memory"] == "5 calls, 20000 bytes"


@pytest.mark.job
def test_a_child_that_a_rank_spawns_is_not_that_rank(tmp_path: Path) -> None:
    result = run(JOBS["intel-mpi, 2 ranks"], "children.py", str(tmp_path / "store"), timeout=200)
    assert result.returncode == 0, result.output
    assert result.stdout.count("has summed") == 2, result.output
