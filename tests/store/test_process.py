"""The process that serves the job's store."""

import os
import signal
import socket
from pathlib import Path

import pytest

from cpudist.errors import UserError
from cpudist.store import process, serve
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess
from cpudist.waiting import poll

TOKEN = b"the token"


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
def test_it_ends_with_its_owner_alone_and_reports_who_was_lost_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Modules in the working folder are not taken for Python's, and no other process gets the port."""
    (tmp_path / "selectors.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    server = StoreProcess(["127.0.0.1"], 0, TOKEN, 5)
    with pytest.raises(UserError, match="Address already in use"):
        StoreProcess(["127.0.0.1"], server.port, TOKEN, 5)
    ranks = [Connection(Address(("127.0.0.1",), server.port, TOKEN, 5), 5) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.on_disconnect("lost", str(number))
        rank.report_on_disconnect("lost", str(number), "claimed", f"{number} was lost")
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        server._process.send_signal(signal_number)
    for rank in ranks:
        rank.count()
        rank.close()
    server.close()
    assert server._process.wait(20) == 0
    said = capfd.readouterr().err
    assert (said.startswith("cpudist: "), said.count("was lost")) == (True, 1), "the other is a consequence"


@pytest.mark.job
def test_standard_error_is_held_while_there_may_be_something_to_report() -> None:
    """A launcher may wait until no process holds it, and the server lives seconds longer than the job."""
    server = StoreProcess(["127.0.0.1"], 0, TOKEN, 5)
    client = Connection(Address(("127.0.0.1",), server.port, TOKEN, 5), 5)
    client.on_disconnect("lost", "0")
    server.close_in_child()
    output = Path(f"/proc/{server._process.pid}/fd/2")
    assert not poll(lambda: output.readlink() == Path(os.devnull), 0.2)
    client.cancel_on_disconnect("lost", "0")
    assert poll(lambda: output.readlink() == Path(os.devnull), 4)
    client.close()
    assert server._process.wait(20) == 0
