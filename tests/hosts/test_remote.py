"""Commands on other hosts: what ssh's answers mean, and programs of this host as they end."""

import asyncio
import socket
import sys
import time
from dataclasses import replace

import pytest
from test_check import FACTS

from cpudist.hosts import check, remote
from cpudist.hosts.remote import Answer, ask_all, run_on
from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.identity import addresses

HERE, THERE = Host("localhost"), Host("192.0.2.1")


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
        (255, "", "exit status 255", "ssh 192.0.2.1 true"),
        (127, "sh: no such file", "has no python", "same path on every host"),
        (126, "", "has no python", "same path on every host"),
        (1, "first\nlast\n", "python fails there: last", "same environment"),
    ],
)
def test_a_failure_has_its_remedy(status: int, errors: str, failure: str, remedy: str) -> None:
    found = remote._read(THERE, ["ssh"], "python", status, "written", errors)
    assert found.output == ""
    assert failure in found.failure
    assert remedy in found.remedy
    assert remote._read(THERE, ["ssh"], "python", 0, "written", errors) == Answer("written")
    assert "ssh" not in remote._read(HERE, ["python"], "python", 255, "", errors).failure


def test_answers_are_in_the_order_of_the_hosts_and_64_are_asked_at_once() -> None:
    asked, most = set[int](), [0]

    async def ask(number: int) -> int:
        asked.add(number)
        most[0] = max(most[0], len(asked))
        await asyncio.sleep(0.001 * (number % 3))
        asked.discard(number)
        return number

    assert ask_all(range(200), ask) == [*range(200)]  # type: ignore[type-var]
    assert most == [remote.AT_ONCE]


@pytest.mark.job
def test_a_program_ends_or_is_killed_in_time() -> None:
    def answer(*words: str, timeout: float = 60) -> Answer:
        return asyncio.run(run_on(HERE, words, timeout))

    assert answer("sh", "-c", "echo out; echo err >&2") == Answer("out\n")
    assert "err" in answer("sh", "-c", "echo err >&2; exit 3").failure
    assert "No such file" in answer("no-such-program").failure
    begin = time.monotonic()
    assert "within 0.2 s" in answer(sys.executable, "-c", "import time; time.sleep(60)", timeout=0.2).failure
    assert "within 0.2 s" in answer("sh", "-c", "sleep 60; true", timeout=0.2).failure, (
        "as a wrapper of ssh has a child"
    )
    assert time.monotonic() - begin < 30


def test_a_clock_is_off_only_beyond_the_time_of_the_answer() -> None:
    fields = {name: getattr(FACTS, name) for name in FACTS.__dataclass_fields__ if name != "skew"}
    for seconds, skew in ((90.0, -10.0), (100.0, 0.0), (104.0, 0.0), (110.0, 5.0)):
        assert check._facts({**fields, "seconds": seconds}, 100.0, 105.0) == replace(FACTS, skew=skew)


def test_two_names_of_one_machine_are_one_host() -> None:
    others = {Host("h0"): FACTS, Host("h1"): replace(FACTS, identity="b")}
    (found,) = check._same_machine(Host("10.0.0.2"), replace(FACTS, identity="b"), others)
    assert (found.level, "h1" in found.message, "h1 slots=2" in found.remedy) == ("error", True, True)
    assert not [*check._same_machine(Host("h2"), replace(FACTS, identity="c"), others)]
