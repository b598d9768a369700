"""The records of runs: `cpudist summary` and `cpudist forecast` read them, and `cpudist top` shows a run at work."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, completed

from cpudist import user_cache
from cpudist.cli import top
from cpudist.cli.main import main
from cpudist.observability import product_speed, summary
from cpudist.observability.rank_answers import RankStacks
from cpudist.observability.rank_table import rows_of
from cpudist.observability.stack_server import StackAddress


def _run(folder: Path, losses: tuple[float, ...] = (2.0, 1.0), **fields: Any) -> Path:
    record = {"world_size": 2, "hosts": ["n0", "n1"], "backend": "ccl", "transport": "mpi", "exit": "completed"}
    record |= {"loss": {"first": losses[0], "last": losses[-1]}, "losses": [*losses, None]}
    record |= {"step_seconds": {"median": 1.2, "p95": 1.3}, "samples_per_second": 10.0, "memory": 2 << 30}
    record |= {"gradients": {"compress": "bf16"}, "pinning": [{"omp_threads": 1000}]}
    record |= {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": [[0.5, 40_000_000], [0, 40_000_000]]}}
    folder.mkdir(parents=True)
    (folder / "cpudist.json").write_text(json.dumps(record | fields))
    return folder


def test_how_runs_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    common = ["train.py", "--do_train", "--lr"]
    falls = _run(tmp_path / "a", (4.0, 0.5), command=[*common, "1e-4"])
    rises = _run(tmp_path / "b", (1.0, 4.0), command=[*common, "3e-4", "--fp16"])
    assert main(["summary", str(falls), str(rises / "cpudist.json")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["loss", "4", "to", "0.5", "1", "to", "4"] in lines
    assert ["--lr:", "1e-4", "|", "3e-4"] in lines
    assert ["--fp16:", "not", "given", "|", "given"] in lines
    assert not any(line[:1] == ["--do_train:"] for line in lines)


def test_a_run_in_full(tmp_path: Path) -> None:
    attempts = {"restarts": 1, "attempts": [[0, 30], [20, 100]], "steps": 100, "samples_per_second": 32.714}
    attempts |= {
        "tokens_per_second": 8192.3,
        "tokens_per_second_per_core": 512.02,
        "product_share": 0.41,
        "shares": {"step": 9, "shares": [12, 4]},
    }
    figures = {"dtype": "bfloat16", "optimizations": ["ipex", "dropout"], "gradients": {"compress": "int8"}}
    run = summary.read(_run(tmp_path / "a", (4.0, 2.0, 1.0), communication_share=0.06, **attempts, **figures))
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
        "tokens/s": "8192 (512 a core, 41 % of its product speed)",
        "step (p95)": "1200 ms (1300)",
        "shares": "12, 4",
        "waits for messages": "6 %",
        "loss": "4 to 1",
        "curve": "█▃▁",
    }
    for losses, said in (([None, 2.0], "not finite to 2"), ([2.0, None], "2 to not finite")):
        ends = dict(zip(("first", "last"), losses, strict=True))
        assert summary.Run("c", {"loss": ends, "losses": losses}).rows()["loss"] == said
    nothing = summary.Run("b", {"world_size": 1}).rows()
    assert nothing == {**dict.fromkeys(run.rows(), ""), "ranks": "1 on "}


@pytest.mark.parametrize(("width", "tables"), [(40, 6), (80, 2), (1000, 1)])
def test_as_many_runs_are_side_by_side_as_fit_the_terminal(tmp_path: Path, width: int, tables: int) -> None:
    names = [f"train-20261127-08150{number}-4711" for number in range(6)]
    runs = [summary.read(_run(tmp_path / name, dtype="bfloat16")) for name in names]
    text = summary.table(runs, width)
    assert text.count("computes in") == tables
    assert tables == 6 or max(map(len, text.splitlines())) <= width
    assert text.split()[:2] == ["train-20261127-"] * 2 or tables == 6


def test_a_folder_of_runs_is_all_of_them_oldest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, day in (("b", 1), ("a", 2)):
        os.utime(_run(tmp_path / "runs" / name, exit=name * 3) / "cpudist.json", (day, day))
    assert main(["summary", str(tmp_path / "runs")]) == 0
    assert ["ended", "bbb", "aaa"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_ranks_that_delay_the_others_are_shown_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    delays = [{"host": f"h{rank}", "waits": 0.2 - rank / 100, "delays": rank / 100} for rank in range(12)]
    waiting = [{"rank": rank, **one} for rank, one in enumerate(delays)]
    run = _run(tmp_path / "a", [2.0, 1.0], waiting=waiting, restarts=3, attempts=[[0, 30], [20, 15], [30, 0], [40, 60]])
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


SCRIPT = """
import time
import cpudist, torch
world = cpudist.init()
layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
model = cpudist.wrap(torch.nn.Sequential(*layers))
layers[1].register_full_backward_hook(lambda *_: time.sleep(0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(4, 1024)).sum().backward()
    cpudist.step(optimizer)
    optimizer.zero_grad()
"""


@pytest.mark.job
def test_a_script_makes_its_steps_here(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [str(BIN / "cpudist"), "forecast", "--hosts", "2,8", "--network", "1gbit", "--json", "--", str(script)]
    forecasts = json.loads(completed(command, timeout=200).stdout)["forecasts"]
    found = {(one["hosts"], one["compress"]): one for one in forecasts}
    assert list(found) == [(1, "none"), *((hosts, scheme) for hosts in (2, 8) for scheme in ("none", "bf16", "int8"))]
    assert found[1, "none"]["step"] == found[1, "none"]["measured"] > 0.2
    # 8.4 of the 16.8 MB are complete 0.2 s before the others, so only these, 0.075 s, are waited for.
    assert 0.06 < found[2, "none"]["waiting"] < 0.08
    assert found[2, "none"]["waiting"] < found[8, "none"]["waiting"]
    assert found[2, "int8"]["memory"] - found[2, "none"]["memory"] == 4 * 4 * (1024 * 1024 + 1024)


def test_a_record_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", str(_run(tmp_path / "out")), "--hosts", "4", "--network", "1gbit"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    shown = [" ".join(line.split()[:2]) for line in lines]
    assert shown[:5] == ["1 none", "2 none", "2 bf16", "2 int8", "4 none"]
    assert lines[2].split()[2:6] == ["1078", "ms", "1200", "ms"]  # the run itself
    assert lines[-1].startswith("On 4 hosts computing is the limit, and ")
    assert max(map(len, [head, *lines[:-1]])) <= 80


def test_further_runs_are_compared_on_the_network_of_the_last_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user_cache.write("network.json", {"bandwidth": 6.7e7})
    alone = _run(tmp_path / "one", hosts=["n0"], world_size=1, gradients=None)
    later = _run(tmp_path / "four", hosts=["n0", "n1", "n2", "n3"], world_size=4, step_seconds={"median": 1.4})
    assert main(["forecast", str(alone), str(later), "--hosts", "2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["bandwidth"] == 6.7e7
    measured = {(one["hosts"], one["compress"]): one["measured"] for one in shown["forecasts"] if one["measured"]}
    assert measured == {(1, "none"): 1.2, (4, "bf16"): 1.4}


JOB = ("h0:29500", 0)


def rank(number: int, seconds: float, waited: float, size: int = 2, **more: object) -> RankStacks:
    """A rank whose clock began at another time than others', after so many seconds."""
    figures = {"host": f"h{number}", "at": 100.0 * number + seconds, "steps": int(10 * seconds), "waited": waited}
    figures |= {"loading": 0.1 * seconds, "processor": 1.5 * seconds, "memory": 3 << 30, "restarts": 0, "losses": []}
    figures |= {"bytes": int(seconds * (5 << 20)), "threads": 2}
    text = f"rank {number} on h{number} (process 7): in all_reduce #5 (4 MB) for 0.1 s\n  MainThread:\n"
    answer = RankStacks(StackAddress(JOB[0], number, size, 3), 0, text, figures | more)
    return RankStacks.list_of([asdict(answer)])[0]  # as another host's ranks are read


def test_the_rank_that_makes_others_wait_is_seen() -> None:
    before = {0: rank(0, 10, waited=4), 1: rank(1, 10, waited=1)}
    speeds = {product_speed.SPEED: 1536.0, product_speed.OF_CORE: 768.0, product_speed.SHARE: 0.5}
    counts = {"restarts": 1, "losses": [4.0, 2.0], "checkpoint": "step-100"}
    now = {0: rank(0, 20, waited=9, **speeds), 1: rank(1, 20, waited=2, **counts)}
    one, other = rows_of(now, before)
    assert (one["steps_per_second"], one["waits"], one["delays"]) == (10, 0.5, 0)
    assert (other["waits"], other["delays"], other["loads"], other["cores"]) == pytest.approx((0.1, 0.4, 0.1, 1.5))
    assert top._text(JOB[0], now, [one, other], room=9) == [
        "job of h0:29500: 2 of 2 ranks, 1536 tokens/s (768 a core, 50 % of its product speed), "
        "each communicates 5 MB/s, restart 1, step-100 saved",
        "rank  host  steps  steps/s  waits  delays  loads  cores   memory  doing",
        "0     h0    200    10       50%    0%      10%    1.50/2  3 GB    in all_reduce #5 (4 MB) for 0.1 s",
        "1     h1    200    10       10%    40%     10%    1.50/2  3 GB    in all_reduce #5 (4 MB) for 0.1 s",
        "loss 4 to 2  █▁",
    ]


def test_what_is_not_known_stays_empty() -> None:
    """A rank that has just started, one of a backend that does not measure, and one whose thread does not answer."""
    silent = RankStacks(StackAddress(JOB[0], 2, 3, 3), 0, "rank 2 (process 9) is stopped; kill -CONT 9 lets it go on\n")
    now = {0: rank(0, 20, waited=9), 1: rank(1, 20, waited=2), 2: silent}
    now[1].figures["waited"] = None
    rows = rows_of(now, {1: rank(1, 10, waited=1)})
    assert [row["waits"] for row in rows] == [row["delays"] for row in rows] == [None] * 3
    assert [row["steps_per_second"] for row in rows] == [None, 10, None]
    assert top._text(JOB[0], now, rows, room=9)[-1].split()[:3] == ["2", "rank", "2"]


@pytest.mark.parametrize(
    ("ranks", "doing"),
    [
        (4, "in all_reduce #5 (4 MB, a_long_name_of_a_script.py:91) for 0.1 s"),
        (64, "in all_reduce #5 (4 MB, train2.py:91) for 0.1 s"),
        (64, "in a_long_name_of_a_script.py:91, after all_reduce #4 (4 MB)"),
    ],
)
def test_two_jobs_use_all_rows_of_a_terminal(
    ranks: int, doing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of many ranks those that delay others are shown, with their line of code."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    before = {number: rank(number, 10, 0, size=ranks) for number in range(ranks)}
    now = {number: rank(number, 20, 5 - (number == 40), size=ranks, losses=[2.0, 1.0]) for number in range(ranks)}
    rows = [{**row, "doing": doing} for row in rows_of(now, before)]
    top._show({JOB: now, ("h1:1", 0): {0: rank(0, 20, 5)}}, {JOB: rows, ("h1:1", 0): rows[:1]}, live=True)
    lines = capsys.readouterr().out.removeprefix(top._CLEAR).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    shown = [line for line in lines if line.endswith(doing if ranks == 4 else ".py:91")]
    if ranks == 4:
        assert len(shown) == ranks + 1
    else:
        assert any(line.startswith("40 ") for line in shown), lines
        assert f"and {ranks - len(shown)} more ranks, which delay the others less" in lines


def test_it_waits_for_the_next_job(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    looks = iter([{}, {}, {JOB: {0: rank(0, 20, 5, size=1)}}, {}])
    words = iter(["", "", "", "q"])
    monkeypatch.setattr(top, "ask", lambda hosts, task: (next(looks), []))
    monkeypatch.setattr(top, "_typed", lambda seconds, live: next(words))
    monkeypatch.setattr(top.sys.stdout, "isatty", lambda: True)
    assert main(["top"]) == 0
    shown = capsys.readouterr().out.split(top._CLEAR)
    assert ["waiting for the next" in text for text in shown[1:]] == [True, False, True]
