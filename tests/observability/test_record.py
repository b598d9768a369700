"""The run record's numbers and file."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from observed import Observed

from cpudist.launchers import Placement
from cpudist.observability.rank_table import waiting
from cpudist.observability.record import Exit, RunRecord
from cpudist.observability.training_figures import Training
from cpudist.supervision.rank_status import Pace, RankStatus
from cpudist.world import RankInfo, World

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()


@pytest.fixture
def job() -> Iterator[Observed]:
    job = Observed(members=[RankInfo("node", "here", Placement(0, 1), cpus=(0, 1), threads=2)], restarts=1)
    yield job
    job.changes.undo()


@pytest.fixture
def record(job: Observed, tmp_path: Path) -> RunRecord:
    record = RunRecord(job)
    record.path = tmp_path / "deep" / "record.json"
    return record


def test_what_nobody_knew_is_null(record: RunRecord) -> None:
    fields = record.as_dict("completed")
    undocumented = [name for name in [*fields, "details"] if f"`{name}`" not in REFERENCE]
    assert undocumented == []
    assert fields["steps"] is fields["gradients"] is fields["waiting"] is fields["checkpoint"] is None
    assert fields["optimizations"] == []
    assert fields["loss"] == {"first": None, "last": None}
    assert fields["step_seconds"] == {"median": None, "p95": None}
    assert (fields["pinning"][0]["cpus"], fields["restarts"]) == ([0, 1], 1)


def test_a_job_ends_though_its_record_cannot_be_written(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").touch()  # where the folder would be
    for exit in ("running", "completed", "failed"):
        record.write(exit)
        assert "the run record was not written: " in capsys.readouterr().err


@pytest.mark.parametrize(("rank", "ranks", "launcher"), [(0, 1, "single"), (1, 2, "mpich"), (0, 2, "notebook")])
def test_nothing_is_said_of_one_process_in_a_notebook_or_by_other_ranks(
    rank: int, ranks: int, launcher: str, job: Observed, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord(replace(job, world=World(rank, ranks, 0, 1, 0, 1, launcher, hosts=("here",))))
    record.begin()
    record.write("completed")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("exit", ["completed", "interrupted", "failed"])
def test_rank_0_says_what_has_started_and_how_it_has_ended(
    exit: Exit, job: Observed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tuple(f"n{host}" for host in range(5))
    job.world = World(0, 10, 0, 2, 0, 5, "slurm", backend="gloo", hosts=hosts)
    record = RunRecord(job)
    record.write_to(tmp_path / "record.json")
    record.begin()
    job.counter.steps = 30
    record.write(exit)
    started, *ended = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"cpudist: 10 ranks on n0, n1, n2 and 2 more hosts, gloo, started in [\d.:]+( s)?", started)
    end = rf"cpudist: {exit} after [\d.:]+( s)?, 30 steps; record in {tmp_path}/record\.json"
    assert exit == "failed" or re.fullmatch(end, ended.pop())
    assert not ended, "the report of a failure is the last line"


def test_numbers_follow_from_the_steps(job: Observed, record: RunRecord) -> None:
    job.counter.steps = 2  # of an earlier loop
    record.training = Training(
        job.counter, times=deque([(1.0, 0.0), (3.0, 1.0)]), samples_per_step=8, losses=[5.0, 2.0]
    )
    job.counter.steps = 5
    fields = record.as_dict("completed")
    assert fields["steps"] == 3
    assert fields["samples_per_second"] == 4.0
    assert fields["step_seconds"] == {"median": 2.0, "p95": 2.9}
    assert fields["communication_share"] == 0.25
    assert fields["loss"] == {"first": 5.0, "last": 2.0}
    record.training.losses += [float("nan"), float("inf")]
    json.dumps(record.as_dict("failed"), allow_nan=False)


def test_other_users_cannot_read_the_file_while_it_is_replaced(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.path.parent.mkdir()
    record.path.touch(mode=0o644)  # of a version that let them
    record.path.with_name(f".{record.path.name}.{os.getpid()}").touch(mode=0o644)  # of a killed process with this id
    modes = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda new, old: modes.append(new.stat().st_mode) or replace(new, old))
    record.write("running")
    record.write("completed")
    assert [mode & 0o777 for mode in (*modes, record.path.stat().st_mode)] == [0o600] * 3
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


def test_without_a_named_place_a_run_has_a_folder_of_its_own(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record.path = None
    record.name_run("examples/train.py", "runs")
    record.write("failed")
    assert not (tmp_path / "runs").exists(), "a wrong option leaves nothing"
    monkeypatch.chdir("/")  # as a script may
    record.write("completed")
    (file,) = tmp_path.glob("runs/*/cpudist.json")
    assert re.fullmatch(rf"train-\d{{8}}-\d{{6}}-{os.getpid()}", file.parent.name)
    assert json.loads(file.read_text())["exit"] == "completed"
    assert re.fullmatch(rf"cpudist: completed after .*; record in {str(file)[1:]}\n", capsys.readouterr().err)


@pytest.mark.parametrize(("program", "runs"), [("cpudist.bench.rank_steps", "runs"), ("train.py", ""), ("", "runs")])
def test_our_own_programs_and_notebooks_leave_none(record: RunRecord, program: str, runs: str, tmp_path: Path) -> None:
    record.path = None
    record.name_run(program, runs)
    record.write("completed")
    assert record.path is None


def test_a_folder_of_runs_that_cannot_be_written_is_one_line(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").touch()
    record.path = None
    record.name_run("train.py", str(tmp_path / "runs"))
    record.write("completed")
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["cpudist"] * 2
    assert "the run record was not written: " in said[0]
    assert "record in" not in said[1]


def test_a_device_is_written_to_and_not_replaced(record: RunRecord, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    record.path = pipe
    record.write("completed")
    assert json.loads(os.read(reader, 1 << 16))["exit"] == "completed"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_restart_knows_what_the_attempts_before_it_have_done(job: Observed, record: RunRecord) -> None:
    file = record.path
    job.counter.steps = 30
    record.write("failed")
    job.restarts = 2
    again = RunRecord(job)
    again.write_to(file)
    again.training.first = 20
    job.counter.steps = 110
    again.write("completed")
    assert json.loads(file.read_text())["attempts"] == [[0, 30], [20, 80]]
    job.restarts = 0
    other = RunRecord(job)
    other.write_to(file)
    assert json.loads(file.read_text())["attempts"] == [[0, 0]]


def test_who_has_waited_and_for_whom() -> None:
    shares = [0.4, 0.1, 0.3, None]
    paces = [Pace(9, 9.0, 1.0, 0, 0.0, 1.0, 1 << 20, 0, 0, None, 8, communication_share=share) for share in shares]
    statuses = {rank: RankStatus(rank, f"h{rank}", pace=pace) for rank, pace in enumerate(paces)}
    rows = waiting({**statuses, 4: RankStatus(4, "h4")})
    assert rows[1] == {"rank": 1, "host": "h1", "waits": 0.1, "delays": 0.25}
    assert [(row["rank"], row["delays"]) for row in rows] == [(0, 0.0), (1, 0.25), (2, 0.0)]
    assert waiting({0: statuses[0]}) == waiting({}) == []
