"""Checking hosts: this one for real, under a wrong name, and what would be wrong with others."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cpudist.doctor.facts import facts
from cpudist.hosts import check as module
from cpudist.hosts import remote
from cpudist.hosts.check import Facts, check
from cpudist.hosts.remote import ask_all
from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.identity import free_port

RANKS = {"socket": 1, "numa": 2, "l3": 4, "default": 2}
FACTS = Facts("a", "3.11.7", "0.1.0", "2.13.0", "", 0.0, 8 << 30, True, RANKS, "a")


@pytest.mark.parametrize(("task", "said"), [("asking", "cpudist: asking: waiting for h1\n"), ("", "")])
def test_a_line_names_the_hosts_that_take_long(
    task: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "_SILENT_SECONDS", 0.05)

    async def ask(host: Host) -> str:
        await asyncio.sleep(0.5 if host.name == "h1" else 0)
        return host.name

    assert ask_all([Host("h0"), Host("h1")], ask, task) == ["h0", "h1"]
    assert capsys.readouterr().err == said


@pytest.mark.job
def test_this_host_is_all_right(tmp_path: Path) -> None:
    checked = check([Host("localhost", 1)])
    assert checked.of_level("error") == []
    (found,) = checked.facts.values()
    assert found.skew == 0
    assert set(found.ranks) == {"socket", "numa", "l3", "default"}
    (tmp_path / "probe").touch()
    assert facts("0", str(tmp_path), "", str(tmp_path / "probe"))["shared"]
    assert not facts("0", str(tmp_path), "", str(tmp_path / "elsewhere"))["shared"]


@pytest.mark.job
def test_a_host_that_cannot_connect_says_to_which_address_and_why() -> None:
    port, folder = str(free_port()), ("", "", "")
    assert (
        facts(port, *folder, "", "127.0.0.1")["unreachable"] == f"127.0.0.1 port {port}: [Errno 111] Connection refused"
    )
    assert "nosuchhost.invalid port" in facts(port, *folder, "", "nosuchhost.invalid")["unreachable"]
    assert "no network interface nosuch0" in facts(port, *folder, "nosuch0", "127.0.0.1")["unreachable"]
    with socket.create_server(("", 0)) as shut_out:

        def hear() -> None:
            with shut_out.accept()[0] as connection:
                connection.recv(8)

        threading.Thread(target=hear).start()
        assert not facts(str(shut_out.getsockname()[1]), *folder, "", "127.0.0.1")["lets_in"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.8.0"}, "error has torch 2.8.0, this host 2.13.0"),
        ({"torch": None}, "error has torch None"),
        ({"cpudist": "0.0.9"}, "error has cpudist 0.0.9"),
        ({"folder": False}, "error has no folder"),
        ({"script": None}, "error has no train.py"),
        ({"script": "b"}, "error has another train.py than this host"),
        ({"shared": False}, "warning has a folder"),
        ({"folder": False, "shared": False}, "error has no folder"),
        ({"unreachable": "10.0.0.9 port 4711: timed out"}, "error cannot connect to this host at 10.0.0.9 port 4711"),
        ({"lets_in": False}, "error does not let this host connect to its free ports"),
        ({"memory": 100 << 20}, "error has 100 MB of free memory, and 4 ranks need 1.56 GB"),
        ({"skew": -120.0}, "warning has a clock that is -120 s off ours"),
        ({"ccl": "there is no C++ compiler"}, "warning cannot use the backend ccl"),
        ({}, ""),
    ],
)
def test_what_is_wrong_with_a_host(changes: dict[str, object], words: str) -> None:
    found = module._judge(Host("h1", 4), replace(FACTS, **changes), FACTS, "train.py")
    assert " ".join(f"{one.level} {one.message}" for one in found).startswith(words)
    assert len(found) == bool(words)
