"""The run record's numbers and file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cpudist.backends.gloo import GlooBackend
from cpudist.job.record import Exit, RunRecord, Training, percentile
from cpudist.launchers import Placement
from cpudist.world import RankInfo, World

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    world = World(0, 1, 0, 1, 0, 1, "single", backend="gloo", hosts=("here",))
    member = RankInfo("node", "here", Placement(0, 1), cpus=(0, 1), threads=2)
    record = RunRecord(world, GlooBackend(), [member], restarts=1)
    record.path = tmp_path / "deep" / "record.json"
    return record


def test_what_nobody_knew_is_null(record: RunRecord) -> None:
    fields = record.as_dict("completed")
    undocumented = [name for name in [*fields, "details"] if f"`{name}`" not in REFERENCE]
    assert undocumented == []
    assert fields["steps"] is fields["gradients"] is None
    assert fields["loss"] == {"first": None, "last": None}
    assert fields["step_seconds"] == {"median": None, "p95": None}
    assert (fields["pinning"][0]["cpus"], fields["restarts"]) == ([0, 1], 1)


def test_a_failed_job_ends_though_its_record_cannot_be_written(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").touch()  # where the folder would be
    with pytest.raises(OSError, match="deep"):
        record.write("completed")
    record.write("failed")
    assert "the run record was not written: " in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "ranks", "launcher"), [(0, 1, "single"), (1, 2, "mpich"), (0, 2, "notebook")])
def test_nothing_is_said_of_one_process_in_a_notebook_or_by_other_ranks(
    rank: int, ranks: int, launcher: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(World(rank, ranks, 0, 1, 0, 1, launcher, hosts=("here",)), GlooBackend(), [], restarts=0)
    record.begin(None)
    record.write("completed")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("exit", ["completed", "interrupted", "failed"])
def test_rank_0_says_what_has_started_and_how_it_has_ended(
    exit: Exit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tuple(f"n{host}" for host in range(5))
    record = RunRecord(World(0, 10, 0, 2, 0, 5, "slurm", backend="gloo", hosts=hosts), GlooBackend(), [], restarts=0)
    record.begin(tmp_path / "record.json")
    record.training.steps = 30
    record.write(exit)
    started, *ended = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"cpudist: 10 ranks on n0, n1, n2 and 2 more hosts, gloo, started in [\d.:]+( s)?", started)
    end = rf"cpudist: {exit} after [\d.:]+( s)?, 30 steps; record in {tmp_path}/record\.json"
    assert exit == "failed" or re.fullmatch(end, ended.pop())
    assert not ended, "the report of a failure is the last line"


def test_numbers_follow_from_the_steps(record: RunRecord) -> None:
    record.training = Training(3, [1.0, 3.0], samples_per_step=8, communication_seconds=1.0, losses=[5.0, 2.0])
    fields = record.as_dict("completed")
    assert fields["steps"] == 3
    assert fields["samples_per_second"] == 4.0
    assert fields["step_seconds"] == {"median": 2.0, "p95": 3.0}
    assert fields["communication_share"] == 0.25
    assert fields["loss"] == {"first": 5.0, "last": 2.0}


def test_json_has_no_infinity(record: RunRecord) -> None:
    record.training = Training(1, [1.0], 1, losses=[float("nan"), float("inf")])
    json.dumps(record.as_dict("failed"), allow_nan=False)


def test_written_whole_and_in_place(record: RunRecord) -> None:
    record.write("running")
    record.write("completed")
    assert json.loads(record.path.read_text())["exit"] == "completed"
    assert [path.name for path in record.path.parent.iterdir()] == ["record.json"]


def test_a_plain_scripts_record_lies_beside_its_results_only(record: RunRecord, tmp_path: Path) -> None:
    record.path, folder = None, tmp_path / "out"
    record.leave_in(folder)
    record.write("failed")
    assert not folder.exists()
    folder.mkdir()
    record.write("failed")
    assert not list(folder.iterdir())
    (folder / "checkpoint-5").mkdir()
    record.write("failed")
    assert json.loads((folder / "cpudist.json").read_text())["exit"] == "failed"


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(1, 0.95, 0), (20, 0.95, 18), (100, 0.95, 94), (2, 0.5, 0), (3, 1.0, 2)]
)
def test_percentile_is_a_value_that_was_measured(count: int, share: float, expected: int) -> None:
    assert percentile(range(count), share) == expected
