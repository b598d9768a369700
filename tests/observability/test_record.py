"""The run record's numbers and file."""

import json
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from clocks import Clock
from observed import Observed

import cpudist
from cpudist.errors import UserError
from cpudist.job import require
from cpudist.launchers import Placement
from cpudist.observability import product_speed, training_figures
from cpudist.observability.record import Exit, RunRecord
from cpudist.observability.training_figures import Training
from cpudist.supervision.rank_status import Pace, RankStatus
from cpudist.world import RankInfo, World

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
PACE = Pace(9, 9.0, 1.0, 0, 0.0, 1.0, 1 << 20, 0, 0, None, 8)


@pytest.fixture
def job() -> Iterator[Observed]:
    job = Observed(members=[RankInfo("node", "here", Placement(0, 1), cpus=(0, 1), threads=2)], restarts=1)
    yield job
    job.changes.undo()


@pytest.fixture
def record(job: Observed) -> RunRecord:
    return RunRecord(job)


def test_what_nobody_knew_is_null(record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/there/train.py", "--lr", "1", "--hub_token", "abc"])
    fields = record.as_dict("failed")
    assert [name for name in [*fields, "details"] if f"`{name}`" not in REFERENCE] == [], "undocumented"
    assert fields.pop("memory") == pytest.approx(psutil.Process().memory_info().rss, rel=2)
    unknown = ("transport", "dtype", "gradients", "gradient_times", "steps", "samples_per_second")
    unknown += ("tokens_per_second", "tokens_per_second_per_core", "product_share")
    unknown += ("communication_share", "waiting", "shares", "checkpoint")
    alone = {"launcher": "single", "corrected_variables": [], "hosts": ["here"], "world_size": 1, "backend": "gloo"}
    assert fields == {
        **dict.fromkeys(unknown),
        **alone,
        "cpudist": cpudist.__version__,
        "torch": torch.__version__,
        "command": ["train.py", "--lr", "1", "--hub_token", "***"],
        "pinning": [{"rank": 0, "host": "here", "cpus": [0, 1], "omp_threads": 2}],
        "network": {},
        "optimizations": [],
        "loss": {"first": None, "last": None},
        "losses": [],
        "step_seconds": {"median": None, "p95": None},
        "restarts": 1,
        "attempts": [[0, 0]],
        "exit": "failed",
    }


def test_numbers_follow_from_the_steps(job: Observed, record: RunRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    job.counter.steps = 2  # of an earlier loop
    monkeypatch.setattr(product_speed.user_cache, "read", {"products.json": {"here": {"bfloat16": 3000.0}}}.get)
    record.training = Training(
        job.counter, 7, deque([(1.0, 0.0), (3.0, 1.0)]), {"samples": 8, "tokens": 50}, [5.0, 2.0 / 3]
    )
    record.dtype = "bfloat16"
    # 6 operations for each weight of the head, 4 for those of the frozen layer, none for the embedding and the norm.
    layers = [torch.nn.Embedding(9, 4), torch.nn.Linear(4, 5).requires_grad_(False), torch.nn.LayerNorm(5)]
    record.note_model(torch.nn.Sequential(*layers, torch.nn.Linear(5, 2)))
    speeds = {"samples_per_second": 4.0, "tokens_per_second": 25.0, "tokens_per_second_per_core": 12.5}
    speeds["product_share"] = pytest.approx(25 * (4 * 20 + 6 * 10) / 6000, rel=1e-5)
    job.counter.steps = 5
    job.backend.compressed = 400, 100
    monkeypatch.setattr(job.backend, "details", lambda: {"algorithm": "ring"})
    record.compression, record.optimizations = "int8", ["ipex"]
    record.checkpoint, record.gradient_times = "step-5", {"values": 1}
    record.network = {"interface": "lo", "address": "127.0.0.1"}
    share = {rank: RankStatus(rank, f"h{rank}", pace=replace(PACE, communication_share=rank / 2)) for rank in (0, 1)}
    job.ranks = {**share, 2: RankStatus(2, "h2"), 3: RankStatus(3, "h3", pace=PACE)}
    record.note_waiting()
    fields = record.as_dict("completed")
    expected = {
        "dtype": "bfloat16",
        "optimizations": ["ipex"],
        "gradients": {"compress": "int8", "bytes": 400, "compressed_bytes": 100},
        "gradient_times": {"values": 1},
        "network": {"interface": "lo", "address": "127.0.0.1"},
        "steps": 3,
        **speeds,
        "step_seconds": {"median": 2.0, "p95": 2.9},
        "communication_share": 0.25,
        "loss": {"first": 5.0, "last": 0.666667},
        "losses": [5.0, 0.666667],
        "waiting": [
            {"rank": 0, "host": "h0", "waits": 0.0, "delays": 0.5},
            {"rank": 1, "host": "h1", "waits": 0.5, "delays": 0.0},
        ],
        "checkpoint": "step-5",
        "attempts": [[7, 3]],
        "exit": "completed",
        "details": {"algorithm": "ring"},
    }
    assert {name: fields[name] for name in expected} == expected
    assert record.newest() == {"checkpoint": "step-5", "losses": [5.0, 2.0 / 3], **speeds}
    assert product_speed.text(record.speeds()) == "25 tokens/s (12.5 a core, 58 % of its product speed)"
    record.training.losses = [float("nan"), *range(9_999), float("inf")]
    fields = record.as_dict("failed")
    assert fields["loss"] == {"first": None, "last": None}, "JSON has neither"
    assert [fields["losses"][number] for number in (0, 1, -1)] == [None, 50, 9995]
    assert (len(fields["losses"]), record.newest()["losses"][:2]) == (197, [9800, 9801])


def test_steps_of_an_own_loop_are_timed_from_the_first_on(job: Observed, record: RunRecord, clock: Clock) -> None:
    clock.drives(training_figures)
    for step in range(1, 5):
        clock.now += step
        job.counter.steps, job.backend.seconds = step, step / 8
        record.step(None)
    assert [*record.training.times] == [(2, 0.125), (3, 0.125), (4, 0.125)]
    job.backend.seconds = None
    job.counter.steps += 1
    record.step(None)
    assert record.training.times[-1] == (0, None)
    record.training = Training(job.counter)
    job.counter.steps += 9
    record.step(None)
    assert not record.training.times, "Trainer's callback times its steps"


@pytest.mark.parametrize(("rank", "ranks", "launcher"), [(0, 1, "single"), (1, 2, "mpich"), (0, 2, "notebook")])
def test_nothing_is_said_of_one_process_in_a_notebook_or_by_other_ranks(
    rank: int, ranks: int, launcher: str, job: Observed, record: RunRecord, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job.world = World(rank, ranks, 0, 1, 0, 1, launcher, hosts=("here",))
    record.begin()
    record.path = tmp_path / "record.json"
    record.write("completed")
    assert capsys.readouterr().err == ""
    assert record.path.exists() == (rank == 0), "on a disk that hosts share"


@pytest.mark.parametrize(
    ("exit", "carriers"), [("completed", None), ("interrupted", "shared memory"), ("failed", "shared memory")]
)
def test_rank_0_says_what_has_started_and_how_it_has_ended(
    exit: Exit, carriers: str | None, job: Observed, record: RunRecord, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job.world = World(0, 10, 0, 2, 0, 5, "slurm", backend="gloo", hosts=tuple(f"n{host}" for host in range(5)))
    monkeypatch.setattr(job.backend, "carriers", lambda: carriers)
    monkeypatch.chdir(tmp_path)
    record.write_to(tmp_path / "record.json")
    assert json.loads((tmp_path / "record.json").read_text())["exit"] == "running", "also if the job is killed"
    record.begin()
    job.counter.steps = 30
    monkeypatch.setenv("CPUDIST_EARLIER_SECONDS", "360000")  # of the attempts before this one
    record.write(exit)
    started, *ended = capsys.readouterr().err.splitlines()
    backend = "gloo over shared memory" if carriers else "gloo"
    hosts = "n0, n1, n2 and 2 more hosts"
    assert re.fullmatch(rf"cpudist: 10 ranks on {hosts}, {backend}, started in [\d.:]+( s)?", started)
    end = rf"cpudist: {exit} after 4 days, [\d:]+, 30 steps; record in record\.json"
    assert exit == "failed" or re.fullmatch(end, ended.pop())
    assert not ended, "the report of a failure is the last line"


def test_an_own_loop_logs_what_trainer_logs(job: Observed, record: RunRecord) -> None:
    job.world, job.balance.ranks = replace(job.world, size=2), 2
    assert record.log(0.5, {"samples": 16, "tokens": 0}) == {"loss": 0.5}, "the speed is not known"
    for number in range(1, 5):
        job.counter.steps = 10 * number  # logged in every tenth step
        record.training.times.extend([(0.2 * number, None)] * 10)
        figures = record.log(None, {"samples": 160})
        assert figures == {"cpudist_samples_per_second": pytest.approx((32 * number + 3.2) / 0.2 / number / number)}
    record.compared = {"delays": 0.1}
    figures = record.log(0.25, {"samples": 0, "tokens": 40_000})
    assert figures.items() > {"loss": 0.25, "cpudist_delays": 0.1}.items()
    assert figures["cpudist_tokens_per_second"] == pytest.approx(2 * 40_000 / 40 / 0.8)
    fields = record.as_dict("completed")
    assert (fields["loss"], fields["losses"]) == ({"first": 0.5, "last": 0.25}, [0.5, 0.25])


def test_what_is_no_figure_is_refused_and_the_record_goes_on() -> None:
    cpudist.init("gloo", pin=False)
    try:
        for figures, said in (
            ({"loss": "a"}, "loss must be a number, or a tensor of one element, not 'a'"),
            ({"loss": torch.ones(2)}, r"loss must be .*, not tensor\(\[1\., 1\.\]\)"),
            ({"samples": -3}, "samples must be a whole number from 0 on, counted on this rank, not -3"),
            ({"samples": (2,)}, r"samples must be .*, not \(2,\)"),
            ({"tokens": 2.5}, "tokens must be .*, not 2.5"),
        ):
            with pytest.raises(UserError, match=said):
                cpudist.log(**figures)
        loss = torch.ones(1, requires_grad=True)  # torch warns where such a tensor becomes a number
        assert cpudist.log(loss=loss, samples=torch.tensor(2), tokens=np.int64(3)) == {"loss": 1.0}
        assert require().record.as_dict("completed")["loss"] == {"first": 1.0, "last": 1.0}
    finally:
        cpudist.shutdown()


def test_other_users_cannot_read_the_file(record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.path = tmp_path / "record.json"
    record.path.touch(mode=0o644)  # of a version that let them
    record.path.with_name(f".{record.path.name}.{os.getpid()}").touch(mode=0o644)  # of a killed process with this id
    modes = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda new, old: modes.append(new.stat().st_mode) or replace(new, old))
    record.write("running")
    record.write("completed")
    assert [mode & 0o777 for mode in (*modes, record.path.stat().st_mode)] == [0o600] * 3
    assert json.loads(record.path.read_text())["exit"] == "completed"
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_plain_scripts_record_lies_beside_its_results_only(record: RunRecord, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    record.leave_in(folder)
    record.write("failed")
    assert not folder.exists()
    folder.mkdir()
    record.write("failed")
    assert not list(folder.iterdir())
    (folder / "checkpoint-5").mkdir()
    record.write("failed")
    assert json.loads((folder / "cpudist.json").read_text())["exit"] == "failed"


def test_a_run_that_has_trained_has_a_folder_of_its_own(
    job: Observed, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record, untrained = RunRecord(job), RunRecord(replace(job, world=replace(job.world, size=2)))
    untrained.name_run("check.py", "runs")
    untrained.begin()
    for exit in ("failed", "completed"):
        untrained.write(exit)
    assert "no record, since the job made no optimizer step" in capsys.readouterr().err
    job.counter.steps = 5
    record.name_run("train.py", "")
    record.name_run("", "runs")  # in a notebook
    record.write("completed")
    assert (record.path, list(tmp_path.iterdir())) == (None, [])
    record.name_run("examples/train.py", "runs")
    monkeypatch.chdir("/")  # as a script may
    record.write("completed")
    (file,) = tmp_path.glob("runs/*/cpudist.json")
    assert re.fullmatch(rf"train-\d{{8}}-\d{{6}}-{os.getpid()}", file.parent.name)
    assert json.loads(file.read_text())["exit"] == "completed"
    assert re.fullmatch(rf"cpudist: completed after .*, 5 steps; record in {str(file)[1:]}\n", capsys.readouterr().err)


@pytest.mark.parametrize("named", [True, False])
def test_a_job_ends_though_its_record_cannot_be_written(
    named: bool, job: Observed, record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").touch()  # where the folder would be
    record.path, job.counter.steps = (tmp_path / "runs" / "record.json" if named else None), 5
    record.name_run("train.py", str(tmp_path / "runs"))
    record.write("failed")
    record.write("completed")
    *said, last = capsys.readouterr().err.splitlines()[: 2 if named else 3]
    assert "the run record was not written: " in last if named else "record in" not in last
    assert all("the run record was not written: " in line and "; --record names" in line for line in said)


def test_a_device_is_written_to_and_not_replaced(record: RunRecord, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    record.path = pipe
    record.write("completed")
    assert json.loads(os.read(reader, 1 << 16))["exit"] == "completed"
    os.close(reader)
    assert pipe.is_fifo()


def test_a_restart_knows_what_earlier_attempts_have_done(job: Observed, record: RunRecord, tmp_path: Path) -> None:
    record.path = file = tmp_path / "deep" / "record.json"
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
