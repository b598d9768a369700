"""`cpudist stacks` and the signal on a job that hangs; nothing is left, and other users get no answer."""

import ctypes
import faulthandler
import io
import json
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import begin, fork_ranks

from cpudist.cli.main import main
from cpudist.job import require
from cpudist.observability import rank_answers
from cpudist.observability.rank_answers import RankStacks, ask_ranks
from cpudist.observability.stack_server import SIGNAL, StackAddress, StackServer
from cpudist.waiting import poll

Serve = Callable[..., StackServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Make this process answer as a rank, until the test has ended."""
    servers = []

    def serve(rank: int = 0, size: int = 1, status: Callable[[], str] = lambda: "here") -> StackServer:
        servers.append(StackServer("again", rank, size, f"rank {rank} on h0", status))
        return servers[-1]

    yield serve
    for server in servers:
        server.stop()


def asked() -> list[str]:
    return [one.text for one in ask_ranks() if f"process {os.getpid()})" in one.text]


def _shown(*words: str) -> str:
    with redirect_stdout(io.StringIO()) as text:
        assert main([*words]) == 0
    return text.getvalue()


def _show(file: Path) -> None:
    """Write what the commands show of the job once all its ranks hang, and end the ranks."""
    name = f"{require().world.hosts[0]}:{require()._context.rendezvous.port}"
    processes: list[int] = []
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[variable]  # only rank 0 of a job prints

    def hang() -> bool:
        texts = [one.text for one in sorted(ask_ranks()) if one.address.job == name]
        processes[:] = [int(re.search(r"\(process (\d+)\)", text)[1]) for text in texts]
        return ["all_reduce #2" in texts[0], *["(process" in text[:20] for text in texts[2:]]] == [True] * 4

    try:
        poll(hang, 60)
        unasked = sorted(one.address.rank for one in ask_ranks(processes) if one.address.job == name)
        full = next(
            job for job in re.split("^job of ", _shown("stacks", "--full"), flags=re.M) if job.startswith(f"{name}:")
        )
        live = next(job for job in json.loads(_shown("top", "--once", "--json")) if job["job"] == name)
        file.write_text(json.dumps([_shown("stacks"), full, live["ranks"], unasked]))
    finally:
        for process in {*processes} - {os.getpid()}:
            os.kill(process, signal.SIGKILL)
        os._exit(0)  # its watch would report the others


@pytest.mark.job
def test_every_rank_is_shown_however_it_hangs(tmp_path: Path) -> None:
    """0 waits in a collective, 1 shows, 2 is blocked in C with the interpreter's lock, also 3, and 4 is stopped."""

    def script() -> None:
        rank = begin().world.rank
        dist.all_reduce(torch.ones(1))
        if rank == 0:
            dist.all_reduce(torch.ones(1 << 20))
        elif rank == 1:
            _show(tmp_path / "shown")
        elif rank == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rank == 3:
            faulthandler.unregister(SIGNAL)
        lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
        lock(mutex)
        lock(mutex)

    outputs = fork_ranks(script, 5, seconds=150)
    assert (tmp_path / "shown").exists(), outputs
    lines, text, rows, unasked = json.loads((tmp_path / "shown").read_text())
    heading, *ranks = re.split(r"^(?=rank \d)", text, flags=re.MULTILINE)
    assert heading.endswith(": 5 of 5 ranks are on this host\n")
    expected = [
        r"rank 0 .*: in all_reduce #2 \(4 MB, test_stacks\.py:\d+\) for \d",
        r"rank 1 .*: in test_stacks\.py:\d+, after all_reduce #1 \(4 B\)(?s:.*)  MainThread:\n(?s:.*)in _shown",
        r"rank 2 .* runs no Python code now\n  its stacks, .*:\n(?s:.*)test_stacks\.py.* in script",
        r"rank 3 \(process \d+\) does not answer\n",
        r"rank 4 \(process \d+\) is stopped; kill -CONT \d+ lets it go on\n",
    ]
    assert [rank for rank, shown in zip(ranks, expected, strict=True) if not re.match(shown, rank)] == [], text
    assert [rank for rank in ranks if rank.partition("\n")[0].partition(".py:")[0] not in lines] == []
    assert "MainThread" not in lines
    assert unasked == [0, 1], "the others do not answer without a signal"
    assert [row["rank"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[0]["doing"].startswith("in all_reduce #2")
    assert rows[1]["memory"] > 1 << 20
    assert [row["steps"] for row in rows] == [0, 0, None, None, None]


@pytest.mark.parametrize("stream", ["as it is", "closed", None, "replaced"])
def test_a_signal_shows_the_stacks_also_without_standard_error(
    stream: str | None, serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = serve()
    if stream != "as it is":
        with open(os.devnull, "w") as closed:
            pass
        monkeypatch.setattr(sys, "stderr", closed if stream == "closed" else stream)
    os.kill(os.getpid(), SIGNAL)
    assert poll(lambda: not select.select([answers._reader], [], [], 0)[0], 10), "the thread has read the stacks"
    assert len(asked()) == 1
    heading = rf"cpudist: rank 0 on h0 \(process {os.getpid()}\): here\n"
    shown = rf"{heading}.*\(most recent call first\):\n(?s:.*) in test_(?s:.*)" if stream == "as it is" else ""
    assert re.fullmatch(shown, capsys.readouterr().err)


def test_an_answer_has_status_figures_and_stacks(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    waits = threading.Event()
    other = threading.Thread(target=waits.wait, name="other")
    other.start()
    answers = serve(3, 8)
    assert ask_ranks([1]) == []
    figures = {"host": "h0", "at": 1.5, "steps": 3, "waited": None, "losses": [1.0]}
    answers.figures = lambda: {**figures, "unknown": 1}
    (one,) = (one for one in ask_ranks([os.getpid()]) if one.address.rank == 3)
    answers.show()
    shown = capsys.readouterr().err
    rank_answers.main()
    assert RankStacks.list_of(json.loads(capsys.readouterr().out))
    waits.set()
    assert (one.address, one.user) == (StackAddress("again", 3, 8, answers._reader), os.getuid())
    assert one.figures == figures
    heading = f"rank 3 on h0 (process {os.getpid()}): here\n"
    stacks = r"  MainThread:\n(?s:.*)test_stacks\.py(?s:.*)\n  other:\n"
    assert re.match(re.escape(heading) + stacks, one.text), one.text
    assert shown.startswith(f"cpudist: {heading}")
    assert "\n  other:\n" in shown


def test_after_stop_nobody_answers_and_files_are_closed(serve: Serve) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):  # a process may join one job after the other
        answers = serve()
        assert len(asked()) == 1
        answers.stop()
        assert asked() == []
        os.kill(os.getpid(), SIGNAL)  # a late request does not end a script that goes on
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.job
def test_a_forked_child_lets_go_once(tmp_path: Path) -> None:
    """Files that the child opens afterwards may have the same descriptors, and stay open."""

    def script() -> None:
        answers = StackServer("forked", 0, 1, "rank 0 on h0", lambda: "here")
        if (child := os.fork()) == 0:
            answers.close()
            files = [(tmp_path / str(number)).open("w") for number in range(8)]
            answers.stop()
            for file in files:
                print("still open", file=file, flush=True)
            os._exit(0)
        answers.stop()
        assert os.waitpid(child, 0)[1] == 0

    assert fork_ranks(script, 1) == [(0, "")]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (lambda: str(1 / 0), ": its status cannot be read: ZeroDivisionError('division by zero')\n"),
        (lambda: "\x1b]0;title\x07\x9b2J\u202e", ": �]0;title��2J�\n"),  # which could control a terminal
        (lambda: "a file \udcff", ": a file ?\n"),
    ],
)
def test_any_status_is_shown_with_the_stacks(status: Callable[[], str], shown: str, serve: Serve) -> None:
    serve(status=status)
    for _ in range(2):
        (text,) = asked()
        assert f"rank 0 on h0 (process {os.getpid()}){shown}" in text
        assert "MainThread" in text


def test_another_users_process_is_not_believed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert asked() == []
