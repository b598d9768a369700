"""The process that serves the job's store."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from cpudist.errors import UserError
from cpudist.store import process, serve
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess

TOKEN = b"the token"
OPTIONS = {"token": TOKEN.hex(), "addresses": ["127.0.0.1"], "port": 0, "keepalive_timeout": 5}


@contextmanager
def streams(monkeypatch: pytest.MonkeyPatch, errors: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Give this process other standard streams; yield the other ends of the first two."""
    (reading, asks), (answers, writing) = os.pipe(), os.pipe()
    with open(reading) as stdin, open(writing, "w") as stdout, errors.open("w") as stderr:
        for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
            monkeypatch.setattr(sys, name, stream)
        with open(asks, "w") as asking, open(answers) as answering:
            yield asking, answering
        monkeypatch.undo()


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signals are handled as before once the test has ended."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    ignored = [signal.signal(number, handler) for number, handler in before.items()]
    assert ignored == [signal.SIG_IGN] * 4, "only the end of the owner ends the store"


def test_it_serves_until_standard_input_ends(handlers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's own program, here in this one."""

    def use(asks: TextIO, answers: TextIO) -> None:
        with asks:
            asks.write(json.dumps(OPTIONS) + "\n")
            asks.flush()
            address = Address(("127.0.0.1",), int(answers.readline()), TOKEN, 5)
            ranks = [Connection(address, 5) for _ in range(2)]
            for number, rank in enumerate(ranks):
                rank.on_disconnect("lost", str(number))
                rank.report_on_disconnect("lost", str(number), "claimed", f"{number} was lost")
            for rank in ranks:
                rank.close()

    with ThreadPoolExecutor() as pool, streams(monkeypatch, tmp_path / "stderr") as (asks, answers):
        used = pool.submit(use, asks, answers)
        serve.main()
        used.result()
    said = (tmp_path / "stderr").read_text()
    assert (said.startswith("cpudist: "), said.count("was lost")) == (True, 1), "the other is a consequence"


def test_a_port_that_is_taken_is_answered(handlers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with streams(monkeypatch, tmp_path / "stderr") as (asks, answers), socket.create_server(("127.0.0.1", 0)) as taken:
        asks.write(json.dumps(OPTIONS | {"port": taken.getsockname()[1]}) + "\n")
        asks.flush()
        serve.main()
        assert answers.readline() == "error Address already in use\n"


def test_standard_error_is_given_up_without_closing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with streams(monkeypatch, tmp_path / "stderr"):
        serve._release_output()
        os.write(sys.stderr.fileno(), b"nobody reads it")
    assert (tmp_path / "stderr").read_text() == ""


@pytest.mark.parametrize("addresses", [[], ["127.0.0.1", "::1"]])
def test_all_addresses_have_one_port(addresses: list[str]) -> None:
    listening = serve.listen(addresses, 0)
    port = listening[0].getsockname()[1]
    for address in ("127.0.0.1", "::1"):
        socket.create_connection((address, port), timeout=20).close()
    assert len(listening) == max(1, len(addresses))
    for one in listening:
        one.close()


@pytest.mark.job
def test_a_server_that_does_not_start_is_an_error_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may be a notebook's kernel, which must not exit."""
    stuck = tmp_path / "python"
    stuck.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 1000\n')
    stuck.chmod(0o755)
    monkeypatch.setattr(process, "_START_SECONDS", 1.0)
    monkeypatch.setattr(process, "_COMMAND", [str(stuck)])
    with pytest.raises(UserError, match="within 1 s"):
        StoreProcess(["127.0.0.1"], 0, TOKEN, keepalive_timeout=5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.job
def test_it_ends_with_its_owner_and_no_other_has_its_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules in the working folder are not taken for Python's."""
    (tmp_path / "selectors.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    server = StoreProcess(["127.0.0.1"], 0, TOKEN, 5)
    with pytest.raises(UserError, match="Address already in use"):
        StoreProcess(["127.0.0.1"], server.port, TOKEN, 5)
    client = Connection(Address(("127.0.0.1",), server.port, TOKEN, 5), 5)
    assert client.count() == 0
    client.interrupt()
    server.close()
    assert server._process.poll() == 0
