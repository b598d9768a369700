"""`cpudist bench jobs`: tables, the end of a job, and real jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jobs
import psutil
import pytest

from cpudist.bench import commands
from cpudist.bench.commands import Completed
from cpudist.bench.jobs import JobTimes, Row, Trained, read
from cpudist.cli.main import main
from cpudist.waiting import poll

SLOW = Trained(samples_per_second=4.0, seconds=40.0, losses=(9.0, 8.0))
FAST = Trained(samples_per_second=5.0, seconds=35.0, losses=(9.0, 8.001))


def test_speed_is_compared_round_by_round() -> None:
    # In the second round the machine is half as fast, for both.
    slower = [Trained(one.samples_per_second / 2, one.seconds * 2, one.losses) for one in (SLOW, FAST)]
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
    # No ratio without a first row.
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
    elsewhere = Trained(6.0, 30.0, (9.0, 4.0))
    rows = (Row("a", "float32", (SLOW,)), Row("b", "float32", (FAST,)), Row("c", "float32", (elsewhere,)))
    assert JobTimes("a model", rows).other_losses() == ["c, float32: loss 4.0000, of a 8.0000"]


def test_a_job_that_trained_alone_does_not_count() -> None:
    result = {"ranks": 1, "train_samples_per_second": 9.0, "losses": [1.0]}
    assert read(result, 10.0) == "trained on 1 rank instead of 2, without an error"
    assert read({**result, "ranks": 2}, 10.0) == Trained(9.0, 10.0, (1.0,))


def test_reason_of_a_failure_is_one_line() -> None:
    output = "starting\nTraceback …\nValueError: no such\tbackend\n====\nroot cause\n"
    assert Completed(1, output, 2.0).reason() == "exit status 1: ValueError: no such backend"
    assert Completed(3, "first\nlast\n\n", 2.0).reason() == "exit status 3: last"
    assert Completed(3, "", 2.0).reason() == "exit status 3: it wrote nothing"
    assert Completed(None, "any", 600.2).reason() == "did not end within 600 s"


@pytest.mark.job
def test_a_job_out_of_time_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its processes are killed, also one that has left the launcher's session, as helpers of launchers do."""
    written = tmp_path / "pid"
    child = f"import os, time; open({str(written)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"

    class OutOfTime(subprocess.Popen[bytes]):
        """A process whose time limit expires as soon as its child runs."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            assert poll(lambda: written.exists() and written.read_text().endswith("\n"), 60)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(commands.subprocess, "Popen", OutOfTime)
    done = commands.run([sys.executable, "-c", parent], dict(os.environ), timeout=600)
    assert done.status is None

    def gone() -> bool:
        try:  # where no process collects orphans, a zombie stays
            return psutil.Process(int(written.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    assert poll(gone, 10)


def test_commands_that_are_not_here_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", "")
    missing = {command.name: command.missing for command in commands.find(tmp_path)}
    assert missing.pop("torchrun, gloo") == ""
    assert "the environment sets an allocator" in missing.pop("torchrun, gloo, tcmalloc")
    assert set(missing.values()) == {"there is no mpirun on PATH"}


def test_jobs_are_not_started_by_jobs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h0", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    assert main(["bench", "jobs"]) == 2
    assert capsys.readouterr().err.count("run it without env: cpudist bench jobs") == 1


@pytest.mark.job
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
