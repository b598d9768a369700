"""`cpudist summary`: runs side by side."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cpudist.cli.main import main
from cpudist.observability import summary


def _run(folder: Path, losses: list[float], **fields: Any) -> Path:
    folder.mkdir(parents=True)
    record = {"world_size": 2, "hosts": ["n0", "n1"], "backend": "ccl", "transport": "mpi", "exit": "completed"}
    record |= {"loss": {"first": losses[0], "last": losses[-1]}, "losses": [*losses, None]}
    record |= {"step_seconds": {"median": 0.264, "p95": 0.3}}
    (folder / "cpudist.json").write_text(json.dumps(record | fields))
    return folder


def test_how_runs_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    common = ["train.py", "--do_train", "--lr"]
    falls = _run(tmp_path / "a", [4.0, 0.5], command=[*common, "1e-4"])
    rises = _run(tmp_path / "b", [1.0, 4.0], command=[*common, "3e-4", "--fp16"])
    assert main(["summary", str(falls), str(rises / "cpudist.json")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["loss", "4", "to", "0.5", "1", "to", "4"] in lines
    assert ["--lr:", "1e-4", "|", "3e-4"] in lines
    assert ["--fp16:", "not", "given", "|", "given"] in lines
    assert not any(line[:1] == ["--do_train:"] for line in lines)


def test_a_run_in_full(tmp_path: Path) -> None:
    attempts = {"restarts": 1, "attempts": [[0, 30], [20, 100]], "steps": 100, "samples_per_second": 32.714}
    figures = {"dtype": "bfloat16", "optimizations": ["ipex", "dropout"], "gradients": {"compress": "int8"}}
    run = summary.read(_run(tmp_path / "a", [4.0, 2.0, 1.0], communication_share=0.06, **attempts, **figures))
    assert run.rows() == {
        "ranks": "2 on n0, n1",
        "backend": "ccl over mpi",
        "computes in": "bfloat16",
        "optimized": "ipex, dropout",
        "compression": "int8",
        "ended": "completed",
        "restarts": "1",
        "recomputed": "10 steps",
        "steps": "100",
        "samples/s": "32.71",
        "step (p95)": "264 ms (300)",
        "waits for messages": "6 %",
        "loss": "4 to 1",
        "curve": "█▃▁",
    }
    nothing = summary.Run("b", {"world_size": 1}).rows()
    assert nothing == {**dict.fromkeys(run.rows(), ""), "ranks": "1 on "}


@pytest.mark.parametrize(("width", "tables"), [(40, 6), (80, 2), (1000, 1)])
def test_as_many_runs_are_side_by_side_as_fit_the_terminal(tmp_path: Path, width: int, tables: int) -> None:
    names = [f"train-20261127-08150{number}-4711" for number in range(6)]
    runs = [summary.read(_run(tmp_path / name, [2.0, 1.0], dtype="bfloat16")) for name in names]
    text = summary.table(runs, width)
    assert text.count("computes in") == tables
    assert tables == 6 or max(map(len, text.splitlines())) <= width
    assert text.split()[:2] == ["train-20261127-"] * 2 or tables == 6


def test_a_folder_of_runs_is_all_of_them_oldest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, day in (("b", 1), ("a", 2)):
        os.utime(_run(tmp_path / "runs" / name, [1.0], exit=name * 3) / "cpudist.json", (day, day))
    assert main(["summary", str(tmp_path / "runs")]) == 0
    assert ["ended", "bbb", "aaa"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_ranks_that_delay_the_others_are_shown_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    delays = [{"host": f"h{rank}", "waits": 0.2 - rank / 100, "delays": rank / 100} for rank in range(12)]
    waiting = [{"rank": rank, **one} for rank, one in enumerate(delays)]
    run = _run(tmp_path / "a", [2.0, 1.0], waiting=waiting, restarts=2, attempts=[[0, 30], [20, 15], [30, 70]])
    assert main(["summary", str(run)]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["recomputed", "15", "steps"] in lines
    first = lines.index(["rank", "host", "waits", "delays"])
    assert lines[first + 1] == ["4", "h4", "16%", "4%"]
    assert lines[first + 8 : first + 10] == [["11", "h11", "9%", "11%"], *[line for line in lines if "more" in line]]
    assert "and 4 more ranks, which delay the others less" in shown
    other = _run(tmp_path / "b", [2.0, 1.0])
    assert main(["summary", str(run), str(other)]) == 0
    assert "more ranks" not in capsys.readouterr().out
