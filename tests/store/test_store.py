"""The job's store: what it keeps, whom it lets in, and how it learns of a client's end."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import PrefixStore

from cpudist.errors import StartupTimeout, UserError
from cpudist.store import process, protocol
from cpudist.store.client import Address, Connection, StoreLost
from cpudist.store.process import StoreProcess
from cpudist.store.protocol import Code
from cpudist.store.torch_store import JobStore

TOKEN = b"the token"


@pytest.fixture
def server() -> Iterator[StoreProcess]:
    process = StoreProcess(["127.0.0.1"], 0, TOKEN, keepalive_timeout=5)
    yield process
    process.close()


def place(server: StoreProcess, token: bytes = TOKEN, job: str = "") -> Address:
    return Address(("127.0.0.1",), server.port, token, 5, job)


@pytest.fixture
def client(server: StoreProcess) -> Connection:
    return Connection(place(server), 5)


@pytest.mark.job
def test_the_server_tells_the_time(client: Connection) -> None:
    assert time.time_ns() <= client.clock() <= time.time_ns()


@pytest.mark.job
def test_keys_and_values(client: Connection) -> None:
    client.set({"a": b"\0\xff", "empty": b""})
    assert client.get(["a", "empty"]) == [b"\0\xff", b""]
    assert client.get(["a", "missing"]) is None
    assert [client.add("n", 3), client.add("n", -5)] == [3, -2]
    assert client.get(["n"]) == [b"-2"], "as torch's stores have it"
    client.append("log", b"one ")
    client.append("log", b"two")
    assert client.get(["log"]) == [b"one two"]
    assert client.compare_set("a", b"other", b"new") == b"\0\xff"
    assert client.compare_set("a", b"\0\xff", b"new") == b"new"
    assert client.compare_set("fresh", b"", b"made") == b"made"
    assert client.compare_set("absent", b"expected", b"made") == b"expected", "as torch's TCPStore answers"
    assert (client.check(["a", "n"]), client.check(["a", "missing"])) == (True, False)
    assert (client.delete("a"), client.delete("a")) == (True, False)
    assert client.count() == 4
    big = bytes(range(256)) * 40000
    client.set({"big": big})
    assert client.get(["big"]) == [big]
    fresh, missing = client.ages(["big", "missing"])
    assert fresh < 60
    assert missing is None


@pytest.mark.job
def test_waits_end_when_a_key_comes_or_the_time_is_over(server: StoreProcess, client: Connection) -> None:
    other = Connection(place(server), 5)
    assert not client.wait_any(["x", "y"], 0.05)
    setter = threading.Timer(0.1, lambda: other.set({"x": b""}))
    setter.start()
    assert client.wait_any(["x", "y"], 60)
    setter.join()
    assert not client.wait_all(["x", "y"], 0.05)
    other.set({"y": b""})
    assert client.wait_all(["x", "y"], 60)


@pytest.mark.job
def test_jobs_on_one_server_do_not_see_each_other(server: StoreProcess) -> None:
    one, other = (Connection(place(server, job=name), 5) for name in ("1", "2"))
    one.set({"key": b"value"})
    assert not other.check(["key"])


@pytest.mark.job
def test_a_broken_connection_is_noted_unless_that_was_cancelled(server: StoreProcess, client: Connection) -> None:
    lost, left, loser = (Connection(place(server), 5) for _ in range(3))
    lost.on_disconnect("lost", "1")
    left.on_disconnect("lost", "2")
    client.cancel_on_disconnect("lost", "2")
    left.interrupt()
    loser.on_disconnect("lost", "3")
    lost.interrupt()
    assert client.wait_all(["lost"], 60)
    loser.interrupt()
    deadline = time.monotonic() + 60
    while client.get(["lost"]) != [b"1 ended\n3 ended\n"]:
        assert time.monotonic() < deadline, client.get(["lost"])
        time.sleep(0.01)


KILLED_TOGETHER = """
import os, signal, sys
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess
server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
ranks = [Connection(Address(("127.0.0.1",), server.port, b"token", 5), 5) for _ in range(3)]
for number, rank in enumerate(ranks):
    rank.on_disconnect("lost", str(number))
    rank.report_on_disconnect("lost", str(number), "claimed", f"{number} was lost")
if "withdrawn" in sys.argv:
    ranks[0].cancel_on_disconnect("lost", "1")
if "claimed" in sys.argv:
    ranks[0].add("claimed", 1)
ranks[1].close()
if "withdrawn" not in sys.argv:
    ranks[0].wait_all(["lost"], 5)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.job
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("", {"cpudist: 1 was lost\n"}),
        ("claimed", {""}),
        ("withdrawn", {f"cpudist: {rank} was lost\n" for rank in "02"}),
    ],
)
def test_where_nobody_is_left_the_store_says_who_was_lost_first(what: str, said: set[str]) -> None:
    """The store holds standard error open until its process ends."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_TOGETHER, what], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stderr in said


@pytest.mark.job
def test_who_does_not_know_the_token_is_not_let_in(server: StoreProcess) -> None:
    with pytest.raises(StartupTimeout, match="another job") as caught:
        Connection(place(server, token=b"a guess"), 0.3)
    assert "token" not in repr(place(server))
    assert "\n" not in str(caught.value)


def test_a_listener_that_does_not_know_the_token_is_not_taken_for_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(protocol.HELLO + bytes(protocol.NONCE_BYTES))
                connection.recv(protocol.ANSWER_BYTES)
                connection.sendall(bytes(protocol.PROOF_BYTES))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(StartupTimeout, match="another job than this one answers"):
            Connection(Address(("127.0.0.1",), listening.getsockname()[1], TOKEN, 5), 1)
        thread.join(60)


@pytest.mark.job
@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
        b"\0" * 100,
        b"",
        protocol.pack(Code.GET, b"/secret") * 10,
    ],
    ids=["http", "zeros", "nothing", "frames without a proof"],
)
def test_garbage_is_shown_out_and_learns_nothing(server: StoreProcess, client: Connection, words: bytes) -> None:
    client.set({"secret": b"TOP SECRET"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as stranger:
        stranger.sendall(words)
        answer = b""
        try:
            while part := stranger.recv(4096):  # to the end of the connection, which the server makes
                answer += part
        except ConnectionResetError:
            pass
    assert len(answer) <= protocol.GREETING_BYTES
    assert client.get(["secret"]) == [b"TOP SECRET"]


@pytest.mark.job
def test_a_flood_of_strangers_keeps_nobody_out(server: StoreProcess, client: Connection) -> None:
    strangers = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(500)]
    try:
        newcomer = Connection(place(server), 60)
        newcomer.set({"key": b"value"})
        assert client.get(["key"]) == [b"value"]
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.job
def test_a_member_that_talks_garbage_goes_alone(server: StoreProcess, client: Connection) -> None:
    broken = Connection(place(server), 5)
    broken._socket.sendall(b"\xff" * 50)
    with pytest.raises(StoreLost):
        broken.count()
    assert client.count() == 0


@pytest.mark.job
def test_a_port_that_is_taken_is_one_line(server: StoreProcess) -> None:
    with pytest.raises(UserError, match="Address already in use") as caught:
        StoreProcess(["127.0.0.1"], server.port, TOKEN, 5)
    assert "\n" not in str(caught.value)


@pytest.mark.job
def test_a_server_that_does_not_start_is_an_error_and_not_our_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may be a notebook's kernel, which must not exit."""
    stuck = tmp_path / "python"
    stuck.write_text(f'#!/bin/sh\necho $$ > "{tmp_path}/pid"\nexec sleep 1000\n')
    stuck.chmod(0o755)
    monkeypatch.setattr(process, "_START_SECONDS", 1.0)
    monkeypatch.setattr(process, "_COMMAND", [str(stuck)])
    with pytest.raises(UserError, match="rank 0 cannot start the job's store within 1 s; to see why, run: "):
        StoreProcess(["127.0.0.1"], 0, TOKEN, keepalive_timeout=5)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.job
def test_the_server_ends_with_its_owner_and_says_so_to_nobody_else(server: StoreProcess, client: Connection) -> None:
    client.interrupt()
    server.close()
    assert server._process.poll() == 0


@given(fields=st.lists(st.binary(max_size=50), max_size=6), code=st.sampled_from(Code), cut=st.integers(1, 400))
def test_frames_survive_the_wire_in_any_pieces(fields: list[bytes], code: Code, cut: int) -> None:
    sent = protocol.pack(code, *fields) + protocol.pack(Code.COUNT)
    buffer, got = bytearray(), []
    for at in range(0, len(sent), cut):
        buffer += sent[at : at + cut]
        got += list(protocol.frames(buffer))
    assert got == [(code, fields), (Code.COUNT, [])]
    assert not buffer


@given(noise=st.binary(max_size=200))
def test_noise_is_garbage_or_incomplete_never_an_accident(noise: bytes) -> None:
    buffer = bytearray(noise)
    try:
        for _code, _fields in protocol.frames(buffer):
            pass
    except protocol.Garbage:
        pass


@pytest.mark.job
def test_a_late_answer_is_not_taken_for_another_question(server: StoreProcess, client: Connection) -> None:
    client.set({"x": b"hello"})
    asking = Connection(place(server), 5)
    asking._socket.sendall(protocol.pack(Code.COUNT))  # a question whose answer nobody has waited for
    with pytest.raises(StoreLost, match="COUNT where GET was asked"):
        asking.get(["x"])
    assert asking.closed
    store = JobStore(place(server), timeout=5)
    store._connection()._socket.sendall(protocol.pack(Code.COUNT))
    with pytest.raises(StoreLost):
        store.get("x")
    assert store.get("x") == b"hello", "on a new connection"


@pytest.mark.job
def test_no_question_ends_the_store(server: StoreProcess, client: Connection) -> None:
    client.add("n", 2**63 - 1)
    with pytest.raises(StoreLost):
        Connection(place(server), 5).add("n", 1)
    waiting = [Connection(place(server), 5) for _ in range(300)]
    for number, one in enumerate(waiting):
        one.on_disconnect("lost", str(number))
        one._socket.sendall(protocol.pack(Code.WAIT_ANY, protocol.number(60_000), b"/lost"))
        one._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for one in waiting:  # all are reset while they are told of each other
        one.close()
    assert client.wait_all(["lost"], 60)
    assert client.count() == 2


@pytest.mark.job
def test_modules_in_the_working_folder_are_not_taken_for_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit('somebody else')")
    monkeypatch.chdir(tmp_path)
    StoreProcess(["127.0.0.1"], 0, TOKEN, 5).close()


@pytest.mark.job
def test_who_comes_after_the_owner_has_ended_is_not_taken(server: StoreProcess, client: Connection) -> None:
    server._stdin.close()
    assert client.count() == 0, "those who are there have a few seconds"
    with pytest.raises(StartupTimeout):
        Connection(place(server), 0.3)


@pytest.mark.job
def test_torch_can_use_it(server: StoreProcess) -> None:
    store = JobStore(place(server), timeout=5)
    inner = PrefixStore("a", PrefixStore("b", store))
    inner.set("key", "value")
    assert inner.get("key") == b"value"
    assert store.get("b/a/key") == b"value"
    assert inner.add("n", 2) == 2
    with pytest.raises(RuntimeError, match=r"wait timeout after 0\.1 s, keys: b/a/never"):
        inner.wait(["never"], timedelta(seconds=0.1))


@pytest.mark.job
def test_threads_do_not_hold_up_each_other(server: StoreProcess) -> None:
    store = JobStore(place(server), timeout=60)
    waiting = threading.Thread(target=lambda: store.wait(["key"]))
    waiting.start()
    store.set("key", "value")  # while the other thread waits
    waiting.join(60)
    assert not waiting.is_alive()


@pytest.mark.job
def test_closing_torchs_store_closes_the_connections_of_threads_and_clones(server: StoreProcess) -> None:
    store = JobStore(place(server), timeout=60)
    clone = store.clone()
    used, over = threading.Event(), threading.Event()

    def use() -> None:
        store.set("of a thread", "1")
        used.set()
        over.wait(20)

    thread = threading.Thread(target=use)
    thread.start()
    clone.set("of a clone", "1")
    assert used.wait(20)
    store.close()
    server.close()
    assert server._process.poll() == 0, "it does not wait for connections that are left open"
    with pytest.raises(StoreLost, match="the job is over"):
        store.get("of a thread")
    over.set()
    thread.join(60)
