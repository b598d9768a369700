"""Commands on other hosts: how they run there, and what is understood of their answers, whatever bytes come back."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_check import FACTS

from cpudist.cli import top
from cpudist.findings import Finding
from cpudist.hosts import check, remote
from cpudist.hosts.remote import ask_all, run_on, understood
from cpudist.launchers.mpi_launcher import Host
from cpudist.observability.rank_answers import RankStacks
from cpudist.observability.rank_table import rows_of
from cpudist.observability.stack_server import StackAddress
from cpudist.topology.identity import addresses

HERE, THERE = Host("localhost"), Host("192.0.2.1", 4, "hosts, line 2")


def test_a_slow_name_server_is_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(remote, "_SLOW_NAME_SECONDS", -1.0)
    monkeypatch.setattr(remote, "_slow_names", [])
    assert not any(map(remote.is_here, ("slow1.invalid", "slow2.invalid")))
    assert capsys.readouterr().err.splitlines() == [
        "cpudist: warning: the name server takes 0 s for slow1.invalid; add the hosts to /etc/hosts"
    ]


def test_only_another_machine_is_reached_by_ssh() -> None:
    for name in ("LOCALHOST", "127.0.0.2", "::1", socket.gethostname(), *addresses()):
        assert remote.command_on(Host(name), ["a b", "c"]) == ["a b", "c"], name
    for name in ("192.0.2.1", "no-such-host.invalid"):
        program, *_, host, words = remote.command_on(Host(name), ["a b", "c"])
        assert (program, host, words) == ("ssh", name, "'a b' 'c'")


@pytest.mark.parametrize(
    ("status", "errors", "failure", "remedy"),
    [
        (255, "warning\nConnection refused\n", "Connection refused", "start sshd"),
        (255, "Permission denied (publickey)", "Permission denied (publickey)", "ssh-copy-id 192.0.2.1"),
        (255, "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "key", "-R 192.0.2.1"),
        (255, "", "exit status 255", "ssh 192.0.2.1 true"),
        (127, "sh: no such file", "has no python", "same path on every host"),
        (126, "", "has no python", "same path on every host"),
        (1, "first\nlast\n", "python fails there: last", "same environment"),
    ],
)
def test_a_failure_has_its_remedy(status: int, errors: str, failure: str, remedy: str) -> None:
    found = remote._read(THERE, ["ssh"], "python", status, "written", errors)
    assert isinstance(found, Finding)
    assert failure in found.message
    assert remedy in found.remedy
    assert remote._read(THERE, ["ssh"], "python", 0, "written", errors) == "written"
    assert "ssh" not in str(remote._read(HERE, ["python"], "python", 255, "", errors))


def test_64_hosts_are_asked_at_once_and_a_line_names_those_that_take_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "_SILENT_SECONDS", 0.5)
    names, asked, most = [f"h{number}" for number in range(200)], set[str](), [0]

    async def ask(host: Host) -> str:
        asked.add(host.name)
        most[0] = max(most[0], len(asked))
        await asyncio.sleep(1 if host.name == "h199" else 0.001 * len(host.name))
        asked.discard(host.name)
        return host.name

    assert ask_all(list(map(Host, names)), ask, "asking") == names
    assert most == [remote.AT_ONCE]
    assert ask_all([Host("h199")], ask) == ["h199"]
    assert capsys.readouterr().err == "cpudist: asking: waiting for h199\n"


@pytest.mark.job
def test_a_program_ends_or_is_killed_in_time() -> None:
    def answer(*words: str, timeout: float = 60) -> Any:
        return asyncio.run(run_on(HERE, words, timeout))

    assert answer("sh", "-c", "echo out; echo err >&2") == "out\n"
    assert "err" in answer("sh", "-c", "echo err >&2; exit 3").message
    assert "No such file" in answer("no-such-program").message
    begin = time.monotonic()
    assert "within 0.2 s" in answer(sys.executable, "-c", "import time; time.sleep(60)", timeout=0.2).message
    assert "within 0.2 s" in answer("sh", "-c", "sleep 60; true", timeout=0.2).message, "like a wrapper of ssh"
    assert time.monotonic() - begin < 30


@pytest.mark.job
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "csh"])
def test_every_login_shell_reads_what_was_meant(shell: str) -> None:
    """sshd passes the command line to the user's login shell, and a path may contain any of these characters."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = ["", "it's", "a b", "back\\slash", "at the end\\", "a!b", '"$HOME"', "~", "*", "{a,b}", "=ls", "$(id)", "é"]
    line = " ".join(map(remote.quoted, [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words]))
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{words!a}\n", done.stderr


FIGURES = {"host": "h1", "at": 1.0, "steps": 3, "waited": 0.5, "loading": 0.1, "processor": 1.0, "memory": 1 << 30}
FIGURES |= {"threads": 2, "bytes": 7, "restarts": 1, "losses": [2.0, 1.0], "checkpoint": "step-1"}
RANK = asdict(RankStacks(StackAddress("h0:29500", 0, 2, 3), 0, "rank 0 (process 1): here\n", FIGURES))
FIELDS = asdict(replace(FACTS, seconds=9.5, findings=[Finding("warning", "quota", "a quota", "raise it")]))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def changed(answer: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An answer of another version: other, more and fewer fields."""
    one = st.builds(lambda name, value: {**answer, name: value}, st.sampled_from([*answer, "new"]), JSON)
    return one | st.sampled_from(list(answer)).map(lambda name: {k: v for k, v in answer.items() if k != name})


def table_or_error(output: str) -> list[str] | None:
    found = understood(THERE, output, RankStacks.list_of)
    if isinstance(found, Finding):
        return None
    ranks = {one.address.rank: one for one in sorted(found)}
    rows = rows_of(ranks, dict.fromkeys(ranks, RankStacks(StackAddress("j", 0, 2, 3), 0, "x", FIGURES)))
    return top._text("job", ranks, rows, 9) if ranks else []


def facts_of(output: str) -> check.Facts | Finding:
    return understood(THERE, output, lambda fields: check._facts(fields, 9.0, 10.0))


@pytest.mark.parametrize(
    "output",
    ["", "Welcome to h1!", "\0\ufffd", json.dumps([RANK])[:-9], "[{}]", '{"ranks": 1}', json.dumps([RANK]) + "\n5"],
)
def test_what_is_no_answer_is_one_line(output: str) -> None:
    for found in (understood(THERE, output, RankStacks.list_of), facts_of(output)):
        assert isinstance(found, Finding)
        assert found.line.startswith("hosts, line 2: 192.0.2.1 gives an answer that is not understood: ")
        assert "\n" not in found.line


@given(changed(FIGURES))
def test_figures_of_another_version_leave_the_others(figures: dict[str, Any]) -> None:
    assert table_or_error(json.dumps([{**RANK, "figures": figures}]))


def test_what_they_say_is_understood_after_a_greeting() -> None:
    lines = table_or_error(f"Welcome!\n\n{json.dumps([RANK])}\n")
    assert lines is not None
    assert lines[0].startswith("job of job: 1 of 2 ranks")
    assert facts_of(f"Hi\n{json.dumps(FIELDS)}").skew == 0
