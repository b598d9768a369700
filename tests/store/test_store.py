"""The job's store: its process, what it keeps, whom it lets in, and how it learns of a client's end."""

import asyncio
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import KEEPALIVE_SECONDS, TOKEN, Serving
from torch.distributed import HashStore, PrefixStore, Store

from cpudist.errors import StartupTimeout, UserError
from cpudist.store import keepalive_timeout, process, protocol
from cpudist.store import server as server_module
from cpudist.store.client import Address, Connection, StoreLost
from cpudist.store.process import StoreProcess
from cpudist.store.torch_store import JobStore
from cpudist.store.values import Values, Wait
from cpudist.waiting import poll


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


def test_it_listens_on_one_port_of_all_addresses() -> None:
    """An interface may have several."""
    sockets = server_module.listen(["127.0.0.1", "127.0.0.2"], 0)
    (port,) = {one.getsockname()[1] for one in sockets}
    for address, one in zip(("127.0.0.1", "127.0.0.2"), sockets, strict=True):
        socket.create_connection((address, port), timeout=5).close()
        one.close()


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


def test_a_client_gets_what_is_there_its_age_and_the_servers_time(client: Connection) -> None:
    before, big = time.time_ns(), bytes(range(256)) * 40000  # more than a socket takes at once
    client.set({"big": big, "small": b"\0\xff"})
    assert client.get(["small", "big"]) == [b"\0\xff", big]
    assert client.get(["small", "missing"]) is None
    assert client.wait_any(["missing", "small"], 60)
    assert not client.wait_any(["missing", "other"], 0.05)
    assert not client.wait_all(["missing", "small"], 0.05)
    age, missing = client.ages(["small", "missing"])
    assert 0.1 <= age <= (time.time_ns() - before) / 1e9 + 0.001
    assert missing is None
    assert before <= client.clock() <= time.time_ns()


KEYS = st.sampled_from(["a", "b", "n"])
VALUES = st.sampled_from(["", "x", "y", "\N{SNOWMAN}"])
CALLS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("add"), st.just("number"), st.integers(-(2**31), 2**31)),
    st.tuples(st.just("append"), KEYS, VALUES),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("num_keys")),
    st.tuples(st.just("check"), st.lists(KEYS, min_size=1)),
    st.tuples(st.just("multi_set"), st.lists(KEYS, min_size=1, max_size=1), st.lists(VALUES, min_size=1, max_size=1)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(calls=st.lists(CALLS, max_size=12))
def test_torchs_methods_do_what_its_own_store_does(store: JobStore, calls: list[tuple]) -> None:
    for key in ("a", "b", "n", "number"):
        store.delete_key(key)
    expected: Store = HashStore()
    for name, *arguments in calls:
        assert getattr(store, name)(*arguments) == getattr(expected, name)(*arguments), name
    there = [key for key in ("a", "b", "n", "number") if expected.check([key])]
    assert store.num_keys() == len(there)
    if there:
        assert store.multi_get(there) == expected.multi_get(there)
        assert store.get(there[0]) == expected.get(there[0])


def test_torch_puts_prefixes_before_the_keys_and_waits_as_long_as_it_is_told(store: JobStore) -> None:
    inner = PrefixStore("a", PrefixStore("b", store))
    inner.set("key", "value")
    assert (inner.get("key"), store.get("b/a/key")) == (b"value", b"value")
    assert store.has_extended_api()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"wait timeout .*b/a/never"):
        inner.wait(["never"], timedelta(seconds=0.1))
    store.set_timeout(timedelta(seconds=0.2))
    assert store.timeout == timedelta(seconds=0.2)
    with pytest.raises(RuntimeError, match="wait timeout"):
        store.get("never")
    assert 0.3 <= time.monotonic() - began < 5
    assert (store.host, store.clone().timeout) == ("127.0.0.1", store.timeout)
    assert store.clock() <= time.time_ns()


def test_a_broken_connection_is_noted_unless_that_was_cancelled(server: Serving, client: Connection) -> None:
    lost, left, loser = (server.connect() for _ in range(3))
    lost.on_disconnect("lost", "1")
    left.on_disconnect("lost", "2")
    client.cancel_on_disconnect("lost", "2")
    left.interrupt()
    loser.on_disconnect("lost", "3")
    lost.interrupt()
    assert client.wait_all(["lost"], 60)
    loser.interrupt()
    assert poll(lambda: client.get(["lost"]) == [b"1 ended\n3 ended\n"], 60), client.get(["lost"])


@pytest.mark.parametrize(
    ("case", "reports"), [("", ["1 was lost"]), ("claimed", []), ("withdrawn", ["0 was lost", "2 was lost"])]
)
def test_a_server_without_clients_reports_who_was_lost_first(server: Serving, case: str, reports: list[str]) -> None:
    ranks = [server.connect() for _ in range(3)]
    for number, rank in enumerate(ranks):
        rank.on_disconnect("lost", str(number))
        rank.report_on_disconnect("lost", str(number), "claimed", f"{number} was lost")
    if case == "withdrawn":
        ranks[0].cancel_on_disconnect("lost", "1")
    if case == "claimed":
        ranks[0].add("claimed", 1)
    ranks[1].close()
    if case != "withdrawn":
        assert ranks[2].wait_all(["lost"], 5)
    server.lose_owner()
    ranks[0].close(), ranks[2].close()
    assert server.ended()
    assert sorted(server.reports[:1] if reports == ["1 was lost"] else server.reports) == reports


def test_without_its_owner_it_takes_no_client_and_ends_after_the_last_one(server: Serving, client: Connection) -> None:
    server.lose_owner()
    assert client.count() == 0
    with pytest.raises(StartupTimeout):
        Connection(server.address(), 0.1)
    assert not server.ended(0.2)
    client.close()
    assert server.ended(server_module._LINGER_SECONDS / 2)


def test_both_ends_notice_a_network_that_is_down(server: Serving, client: Connection) -> None:
    """By the kernel's options, as the sockets of a connection have them: tcp(7)."""
    (peer,) = server.server._peers
    for end in (client._socket, peer.transport.get_extra_info("socket")):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT", "TCP_NODELAY")
        set_to = [end.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) for option in options]
        assert set_to == [1, 1, 9, 1000 * KEEPALIVE_SECONDS, 1], "a probe each second; an answer until 8"
    client.on_disconnect("lost", "1")
    assert 0 <= client.silences("lost")["1"] < 1, "it has just sent this request"
    assert client.silences("other") == {}
    with socket.socket() as one:
        protocol.enable_keepalive(one, 0.5)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
    assert [keepalive_timeout(seconds) for seconds in (1, 10, 20, 300)] == [5, 5, 10, 30]


def test_an_answer_that_takes_long_is_told_once(server: Serving) -> None:
    told: list[None] = []
    client = Connection(replace(server.address(), keepalive_timeout=0.3), 5)
    client.on_silence = lambda: told.append(None)
    assert not client.wait_any(["never"], 0)
    assert told == []
    assert not client.wait_any(["never"], 0.5)
    assert told == [None]
    client.close()


def test_threads_do_not_wait_for_each_other(store: JobStore) -> None:
    waiting = threading.Thread(target=lambda: store.wait(["key"]))
    waiting.start()
    store.set("key", "value")  # while the other thread waits
    waiting.join(60)
    assert not waiting.is_alive()


def test_closing_torchs_store_closes_the_connections_of_threads_and_clones(server: Serving) -> None:
    store = JobStore(server.address(), timeout=60)
    clone = store.clone()
    thread = threading.Thread(target=lambda: store.set("of a thread", "1"))
    thread.start()
    thread.join(60)
    clone.set("of a clone", "1")
    store.close()
    server.lose_owner()
    assert server.ended(server_module._LINGER_SECONDS / 2), "it does not wait for connections that are left open"
    with pytest.raises(StoreLost, match="the job is over"):
        store.get("of a thread")


LOOP = asyncio.new_event_loop()
NAMES = st.sampled_from([b"a", b"b", b"c"])


@given(
    events=st.lists(st.one_of(NAMES, st.tuples(st.sampled_from([all, any]), st.lists(NAMES, min_size=1, max_size=3))))
)
def test_everybody_is_told_once_as_soon_as_the_keys_are_there(events: list) -> None:
    values, there, waits = Values(LOOP), set(), []
    for event in events:
        if isinstance(event, bytes):
            values.set(event, b"")
            there.add(event)
        else:
            told: list[bool] = []
            wait = Wait(list(event[1]), event[0], told.append)
            values.wait(wait, 1000)
            waits.append((wait, told))
        for wait, told in waits:
            assert told == ([True] if wait.enough(key in there for key in wait.keys) else [])
    for wait, told in waits:
        values.forget(wait)
        values.set(b"a", b""), values.set(b"b", b""), values.set(b"c", b"")
        assert len(told) <= 1
    assert not values._waiting, "nobody is kept for ever"
