"""`cpudist bench jobs`: what it says about jobs, how it ends them, and real ones."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import jobs
import psutil
import pytest

from cpudist.bench import launchers, start
from cpudist.bench.jobs import JobTimes, Outcome, Row, read

SLOW = Outcome(samples_per_second=4.0, seconds=40.0, losses=(9.0, 8.0))
FAST = Outcome(samples_per_second=5.0, seconds=35.0, losses=(9.0, 8.001))


def test_speed_is_compared_round_by_round() -> None:
    # The machine slows down to half in the second round, for both.
    slower = [Outcome(one.samples_per_second / 2, one.seconds * 2, one.losses) for one in (SLOW, FAST)]
    first, second = Row("a", "float32", (SLOW, slower[0])), Row("b", "float32", (FAST, slower[1]))
    found = JobTimes("a model", (first, second)).speed_up(second)
    assert found is not None
    assert found.rounds == pytest.approx((1.25, 1.25))


def test_table_of_jobs() -> None:
    rows = (
        Row("torchrun, gloo", "float32", (SLOW,) * 3),
        Row("accelerate", "float32", missing="there is no mpirun on PATH"),
        Row("mpirun, ccl", "float32", (FAST, SLOW, FAST)),
        Row("torchrun, gloo", "bfloat16", missing="did not end within 600 s"),
        Row("mpirun, ccl", "bfloat16", (FAST,) * 3),
    )
    full, half = (block.splitlines() for block in JobTimes("a model", rows).table().split("\n\n"))
    assert full[0] == "a model, float32"
    assert full[1].split() == ["samples/s", "times", "torchrun,", "gloo", "whole", "job", "loss"]
    assert full[2].split() == ["torchrun,", "gloo", "4", "(4-4)", "1", "(1-1)", "40", "s", "(40-40)", "8.0000"]
    assert full[3].split() == ["mpirun,", "ccl", "5", "(4-5)", "1.25", "(1-1.25)", "35", "s", "(35-40)", "8.0010"]
    assert full[4] == "accelerate: there is no mpirun on PATH"
    # Nothing to compare with, and no figure for it.
    assert " - " in half[2]
    assert half[3] == "torchrun, gloo: did not end within 600 s"


def test_jobs_as_json() -> None:
    rows = (
        Row("torchrun, gloo", "float32", (SLOW, SLOW)),
        Row("mpirun, ccl", "float32", (FAST, SLOW)),
        Row("accelerate", "float32", missing="why"),
    )
    first, second, third = JobTimes("a model", rows).as_list()
    assert first["times_the_first"]["median"] == 1.0
    assert second["samples_per_second"] == [5.0, 4.0]
    assert second["times_the_first"]["rounds"] == pytest.approx([1.25, 1.0])
    assert second["losses"] == [[9.0, 8.001], [9.0, 8.0]]
    assert second["whole_seconds"]["spread"] == [35.0, 40.0]
    assert third == {"job": "accelerate", "dtype": "float32", "missing": "why"}


def test_training_to_something_else_is_said() -> None:
    elsewhere = Outcome(6.0, 30.0, (9.0, 4.0))
    rows = (Row("a", "float32", (SLOW,)), Row("b", "float32", (FAST,)), Row("c", "float32", (elsewhere,)))
    assert JobTimes("a model", rows).other_losses() == ["c, float32: loss 4.0000, of a 8.0000"]


def test_a_job_that_trained_alone_does_not_count() -> None:
    result = {"ranks": 1, "train_samples_per_second": 9.0, "losses": [1.0]}
    assert read(result, 10.0) == "trained on 1 rank instead of 2, without an error"
    assert read({**result, "ranks": 2}, 10.0) == Outcome(9.0, 10.0, (1.0,))


def test_reason_of_a_failure_is_one_line() -> None:
    output = "starting\nTraceback …\nValueError: no such\tbackend\n====\nroot cause\n"
    assert start.End(1, output, 2.0).reason() == "exit status 1: ValueError: no such backend"
    assert start.End(3, "first\nlast\n\n", 2.0).reason() == "exit status 3: last"
    assert start.End(3, "", 2.0).reason() == "exit status 3: it wrote nothing"
    assert start.End(None, "any", 600.2).reason() == "did not end within 600 s"


def test_a_job_out_of_time_leaves_nothing() -> None:
    """Neither the launcher nor a process that has left its session, as launchers' helpers do."""
    child = "import os, subprocess, sys, time; print(os.getpid(), flush=True); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    end = start.run([sys.executable, "-c", parent], dict(os.environ), timeout=8)
    assert end.status is None
    with suppress(psutil.NoSuchProcess):  # where nobody collects what orphans leave, its number stays
        assert psutil.Process(int(end.output)).status() == psutil.STATUS_ZOMBIE


def test_launchers_that_are_not_here_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "")
    missing = {launcher.name: launcher.missing for launcher in launchers.find(tmp_path)}
    assert missing.pop("torchrun, gloo") == ""
    assert "decided about the allocator" in missing.pop("torchrun, gloo, tcmalloc")
    assert set(missing.values()) == {"there is no mpirun on PATH"}


def test_jobs_are_not_started_by_jobs() -> None:
    result = jobs.run(jobs.mpirun(2, str(jobs.BIN / "cpudist"), "bench", "jobs"), timeout=120)
    assert result.returncode != 0, result.output
    assert result.stderr.count("run it without intel-mpi: cpudist bench jobs") == 1, result.output


@pytest.mark.long
def test_real_jobs(tmp_path: Path) -> None:
    kept, drawn = tmp_path / "jobs.json", tmp_path / "jobs.png"
    command = [str(jobs.BIN / "cpudist"), "bench", "jobs", "--quick", "--json", str(kept), "--plot", str(drawn)]
    result = jobs.run(command, timeout=300)
    assert result.returncode == 0, result.output
    assert "warning" not in result.stderr, result.output
    content = json.loads(kept.read_text())
    assert content["environment"]["transformers"]
    measured = {entry["job"]: entry for entry in content["results"]}
    assert set(measured) == {"torchrun, gloo", "accelerate launch --cpu, gloo", "mpirun, ccl"}
    first = measured["torchrun, gloo"]["losses"][0]
    for entry in measured.values():
        assert "missing" not in entry, entry
        assert len(entry["losses"][0]) == 2
        assert entry["losses"][0] == pytest.approx(first, rel=1e-3)  # the same data, seed and arithmetic
        assert entry["samples_per_second"][0] > 0
        assert entry["whole_seconds"]["median"] > 2 * 2 / entry["samples_per_second"][0]  # start-up is in it
    assert drawn.read_bytes().startswith(b"\x89PNG")
