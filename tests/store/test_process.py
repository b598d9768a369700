"""The process that serves the job's store."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpudist.errors import UserError
from cpudist.store import process
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess

pytestmark = pytest.mark.job

TOKEN = b"the token"


@pytest.fixture
def server() -> Iterator[StoreProcess]:
    process = StoreProcess(["127.0.0.1"], 0, TOKEN, keepalive_timeout=5)
    yield process
    process.close()


KILLED_TOGETHER = """
import os, signal
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess
server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
ranks = [Connection(Address(("127.0.0.1",), server.port, b"token", 5), 5) for _ in range(2)]
for number, rank in enumerate(ranks):
    rank.on_disconnect("lost", str(number))
    rank.report_on_disconnect("lost", str(number), "claimed", f"{number} was lost")
ranks[1].close()
ranks[0].wait_all(["lost"], 5)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_where_no_rank_is_left_the_store_reports_the_first_lost_one() -> None:
    """It holds standard error open until its process ends."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_TOGETHER], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "cpudist: 1 was lost\n")


def test_a_port_that_is_taken_is_a_users_error(server: StoreProcess) -> None:
    with pytest.raises(UserError, match="Address already in use"):
        StoreProcess(["127.0.0.1"], server.port, TOKEN, 5)


def test_a_server_that_does_not_start_is_a_users_error_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may be a notebook's kernel, which must not exit."""
    stuck = tmp_path / "python"
    stuck.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 1000\n')
    stuck.chmod(0o755)
    monkeypatch.setattr(process, "_START_SECONDS", 1.0)
    monkeypatch.setattr(process, "_COMMAND", [str(stuck)])
    with pytest.raises(UserError, match="within 1 s"):
        StoreProcess(["127.0.0.1"], 0, TOKEN, keepalive_timeout=5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_process_ends_with_its_owner(server: StoreProcess) -> None:
    client = Connection(Address(("127.0.0.1",), server.port, TOKEN, 5), 5)
    assert client.count() == 0
    client.interrupt()
    server.close()
    assert server._process.poll() == 0


def test_modules_in_the_working_folder_are_not_taken_for_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    StoreProcess(["127.0.0.1"], 0, TOKEN, 5).close()
