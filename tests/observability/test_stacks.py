"""`cpudist stacks` and the signal on a job that hangs; nothing is left, and other users get no answer."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import BIN, mpirun, run, train
from ranks import begin, fork_ranks

from cpudist.observability import rank_answers
from cpudist.observability.rank_answers import RankStacks, ask_ranks
from cpudist.observability.stack_server import SIGNAL, StackAddress, StackServer, read_pipe
from cpudist.waiting import poll

TOP = [str(BIN / "cpudist"), "top", "--once", "--json"]
SCRIPT = Path(__file__).parent / "checks" / "four_ways.py"


def stacks(*words: str) -> str:
    command = [BIN / "cpudist", "stacks", *words]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.mark.job
def test_every_rank_is_shown_however_it_hangs(tmp_path: Path) -> None:
    over = tmp_path / "over"
    command = mpirun(4, *train("--backend", "ccl", str(SCRIPT), str(over)))
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(run, command, 120)
        try:
            assert poll(lambda: ending.done() or len(list(tmp_path.glob("there-*"))) == 4, 90)
            lines, shown = (stacks(*words) for words in ([], ["--full"]))
            live = subprocess.run(TOP, capture_output=True, text=True, timeout=60, check=True).stdout
            process = re.search(r"rank 1 on .*\(process (\d+)\).*four_ways", shown)
            assert process, shown
        finally:
            over.touch()
            ending.result()
    # Other jobs of this user may run on this machine.
    text = next(job for job in shown.split("job of ") if f"process {process[1]}" in job)
    ranks = re.split(r"^(?=rank \d)", text, flags=re.MULTILINE)[1:]
    assert [int(rank.split()[1]) for rank in ranks] == [0, 1, 2, 3], text
    assert re.search(r"in all_reduce #2 \(4 MB, four_ways\.py:24\) for \d", ranks[0]), ranks[0]
    assert re.search(r"MainThread.*line 28, in wait_for_the_end.*poll\(over\.exists", ranks[1], re.DOTALL), ranks[1]
    assert "runs no Python just now" in ranks[2], ranks[2]
    assert re.search(r"four_ways\.py\", line 36 in <module>", ranks[2]), ranks[2]
    assert re.search(r"is stopped; kill -CONT \d+", ranks[3]), ranks[3]
    heading, *firsts = text.splitlines()[0], *(rank.splitlines()[0] for rank in ranks)
    assert heading.endswith(": 4 of 4 ranks are on this host")
    assert f"job of {heading}\n" in lines
    assert all(re.sub(r"for [\d.]+ s$", "", first) in lines for first in firsts), (firsts, lines)
    assert "MainThread" not in lines
    name = heading.rpartition(": ")[0]
    found = next(job["ranks"] for job in json.loads(live) if job["job"] == name)
    assert [row["rank"] for row in found] == [0, 1, 2, 3]
    assert found[0]["doing"].startswith("in all_reduce #2"), found
    assert found[1]["memory"] > 1 << 20, found
    assert found[2]["steps"] is found[3]["steps"] is None, "their threads do not answer"


def asked(pid: int) -> list[str]:
    return [one.text for one in ask_ranks() if f"process {pid})" in one.text]


@pytest.mark.job
def test_ranks_whose_threads_do_not_answer() -> None:
    """Rank 1 is blocked in C with the interpreter's lock, as is rank 2, without a handler; rank 3 has been stopped."""

    def script() -> None:
        rank = int(os.environ["RANK"])
        if rank == 0:
            expected = ["runs no Python just now\n  its .* first:\n(?s:.*)in script\n", "does not answer\n"]
            expected += [r"is stopped; kill -CONT \d+ lets it go on\n"]
            texts: list[str] = []

            def ask() -> bool:
                texts[:] = [one.text for one in sorted(ask_ranks()) if one.address.job == "silent"]
                return len(texts) == 3 and all(map(re.search, expected, texts))

            found = poll(ask, 40)
            processes = [int(re.match(r"rank \d \(process (\d+)\) ", text)[1]) for text in texts]
            unasked = [one for one in ask_ranks(processes) if one.address.job == "silent"]
            for process in processes:
                os.kill(process, signal.SIGKILL)
            assert found, texts
            assert unasked == [], "without a signal"
            return
        answers = StackServer("silent", rank, 4, "", str)
        if rank == 2:
            faulthandler.unregister(SIGNAL)
        if rank == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
        lock(mutex)
        lock(mutex)
        answers.stop()

    asked, *silent = fork_ranks(script, 4)
    assert asked == (0, "")
    assert silent == [(-signal.SIGKILL, "")] * 3


@pytest.mark.job
def test_the_signal_makes_a_rank_write_its_stacks_and_go_on() -> None:
    def script() -> None:
        answers = StackServer("signal", 5, 8, "rank 5 on h1", lambda: "in the text")
        os.kill(os.getpid(), SIGNAL)
        assert poll(lambda: not select.select([answers._reader], [], [], 0)[0], 10)
        answers.stop()
        os.write(2, b"went on")

    ((status, output),) = fork_ranks(script, 1)
    heading = r"cpudist: rank 5 on h1 \(process \d+\): in the text\n"
    assert re.fullmatch(rf"{heading}.*\(most recent call first\):(?s:.*) in script\n(?s:.*)went on", output), output
    assert status == 0


@pytest.mark.parametrize("stream", ["closed", None, "replaced"])
def test_a_rank_without_standard_error_answers_also_after_the_signal(
    stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = open(os.devnull, "w") if stream == "closed" else stream  # noqa: SIM115
    if stream == "closed":
        replaced.close()
    answers = StackServer("again", 0, 1, "rank 0 on h0", lambda: "here")
    monkeypatch.setattr(sys, "stderr", replaced)
    os.kill(os.getpid(), SIGNAL)
    assert poll(lambda: not select.select([answers._reader], [], [], 0)[0], 10), "the thread has read the stacks"
    assert len(asked(os.getpid())) == 1
    answers.stop()


def test_an_answer_has_status_figures_and_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    waits = threading.Event()
    other = threading.Thread(target=waits.wait, name="other")
    other.start()
    answers = StackServer("again", 3, 8, "rank 3 on h0", lambda: "here")
    assert ask_ranks([1]) == []
    figures = {"host": "h0", "at": 1.5, "steps": 3, "waited": None, "losses": [1.0]}
    answers.figures = lambda: {**figures, "memory": "much", "unknown": 1}
    (one,) = (one for one in ask_ranks([os.getpid()]) if one.address.rank == 3)
    answers.show()
    shown = capsys.readouterr().err
    rank_answers.main()
    assert RankStacks.list_of(json.loads(capsys.readouterr().out))
    waits.set()
    answers.stop()
    assert (one.address, one.user) == (StackAddress("again", 3, 8, answers._reader), os.getuid())
    assert one.figures == figures
    heading = f"rank 3 on h0 (process {os.getpid()}): here\n"
    assert re.match(rf"{re.escape(heading)}  MainThread:\n(?s:.*)test_stacks\.py(?s:.*)\n  other:\n", one.text), (
        one.text
    )
    assert shown.startswith(f"cpudist: {heading}")
    assert "\n  other:\n" in shown


def test_a_pipe_is_read_until_it_pauses() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with ThreadPoolExecutor(1) as pool:
        assert read_pipe(reader, wait=0) == b""
        reading = pool.submit(read_pipe, reader, wait=20)
        written = b"".join(b"%d " % number for number in range(50_000))
        os.write(writer, written[:60_000])
        with os.fdopen(writer, "wb") as file:
            file.write(written[60_000:])
        assert reading.result() == written
    os.close(reader)


def test_after_stop_nobody_answers_and_files_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):  # a process may join one job after the other
        answers = StackServer("again", 0, 1, "rank 0 on h0", lambda: "here")
        assert len(asked(os.getpid())) == 1
        answers.stop()
        assert asked(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.job
def test_a_job_starts_also_where_its_name_is_taken() -> None:
    def script() -> None:
        StackAddress.socket_name = lambda self: "\0cpudist-test-taken"
        with socket.socket(socket.AF_UNIX) as taken:
            taken.bind("\0cpudist-test-taken")
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(OSError, match="Address already in use"):
                StackServer("again", 0, 1, "rank 0 on h0", lambda: "here")
            assert len(os.listdir("/proc/self/fd")) == before
            begin().shutdown()

    ((status, output),) = fork_ranks(script, 1)
    line = r"cpudist: warning: cpudist stacks will not find rank 0 on .*: Address already in use\n"
    assert re.fullmatch(line, output), output
    assert status == 0


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
def test_any_status_is_shown_with_the_stacks(status: Callable[[], str], shown: str) -> None:
    answers = StackServer("again", 0, 1, "rank 0 on h0", status)
    for _ in range(2):
        (text,) = asked(os.getpid())
        assert f"rank 0 on h0 (process {os.getpid()}){shown}" in text
        assert "MainThread" in text
    answers.stop()


@given(
    st.builds(
        StackAddress,
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
        *[st.integers(0, 10**6)] * 3,
    )
)
def test_names_of_sockets_and_back(address: StackAddress) -> None:
    assert StackAddress.of("@" + address.socket_name()[1:]) == address


def test_another_users_process_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = StackServer("again", 0, 1, "rank 0 on h0", lambda: "here")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert asked(os.getpid()) == []
    answers.stop()


def test_other_sockets_are_not_taken_for_ranks() -> None:
    assert StackAddress.of("@/tmp/.X11-unix/X0") is None
    assert StackAddress.of("/run/cpudist/rank/1.2.3.a") is None
