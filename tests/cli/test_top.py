"""`cpudist top`: rates between two samples, a table that fits a terminal; observability/test_stacks.py asks ranks."""

import pytest

from cpudist.cli import top
from cpudist.cli.main import main
from cpudist.observability.rank_answers import RankStacks
from cpudist.observability.rank_table import rows_of
from cpudist.observability.stack_server import StackAddress

JOB = ("h0:29500", 0)


def rank(number: int, seconds: float, waited: float, size: int = 2, **more: object) -> RankStacks:
    """A rank whose clock began at another time than others', after so many seconds."""
    figures = {"host": f"h{number}", "at": 100.0 * number + seconds, "steps": int(10 * seconds), "waited": waited}
    figures |= {"loading": 0.1 * seconds, "processor": 1.5 * seconds, "memory": 3 << 30, "restarts": 0, "losses": []}
    figures |= {"bytes": int(seconds * (5 << 20)), "threads": 2}
    text = f"rank {number} on h{number} (process 7): in all_reduce #5 (4 MB) for 0.1 s\n  MainThread:\n"
    return RankStacks(StackAddress(JOB[0], number, size, 3), 0, text, figures | more)


def test_the_rank_that_makes_others_wait_is_seen() -> None:
    before = {0: rank(0, 10, waited=4), 1: rank(1, 10, waited=1)}
    now = {0: rank(0, 20, waited=9), 1: rank(1, 20, waited=2, restarts=1, losses=[4.0, 2.0], checkpoint="step-100")}
    one, other = rows_of(now, before)
    assert (one["steps_per_second"], one["waits"], one["delays"]) == (10, 0.5, 0)
    assert (other["waits"], other["delays"], other["loads"], other["cores"]) == pytest.approx((0.1, 0.4, 0.1, 1.5))
    assert top._text(JOB[0], now, [one, other], room=9) == [
        "job of h0:29500: 2 of 2 ranks, each communicates 5 MB/s, restart 1, step-100 saved",
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
