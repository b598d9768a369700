"""The job's store: what it keeps, whom it lets in, and how it learns of a client's end."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import KEEPALIVE_SECONDS, TOKEN, Serving
from torch.distributed import HashStore, PrefixStore, Store

from cpudist.errors import StartupTimeout
from cpudist.store import keepalive_timeout, protocol
from cpudist.store import server as server_module
from cpudist.store.client import Address, Connection, StoreLost
from cpudist.store.protocol import Code
from cpudist.store.torch_store import JobStore
from cpudist.waiting import poll


@pytest.fixture
def client(server: Serving) -> Iterator[Connection]:
    connection = server.connect()
    yield connection
    connection.close()


@pytest.fixture
def store(server: Serving) -> Iterator[JobStore]:
    """The same store as torch has it."""
    store = JobStore(server.address(), timeout=5)
    yield store
    store.close()


def test_the_server_tells_the_time_and_the_age_of_a_value(client: Connection) -> None:
    before = time.time_ns()
    client.set({"key": b""})
    assert before <= client.clock() <= time.time_ns()
    time.sleep(0.05)
    age, missing = client.ages(["key", "missing"])
    assert 0.05 <= age <= (time.time_ns() - before) / 1e9 + 0.001
    assert missing is None


def test_a_value_may_be_larger_than_what_a_socket_takes_at_once(client: Connection) -> None:
    big = bytes(range(256)) * 40000
    client.set({"big": big, "small": b"\0\xff"})
    assert client.get(["small", "big"]) == [b"\0\xff", big]
    assert client.get(["small", "missing"]) is None


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


def test_a_wait_ends_when_its_keys_are_there_or_its_time_is_over(server: Serving, client: Connection) -> None:
    other = server.connect()
    assert not client.wait_any(["x", "y"], 0.05)
    setter = threading.Timer(0.1, lambda: other.set({"x": b""}))
    setter.start()
    assert client.wait_any(["x", "y"], 60)
    setter.join()
    assert not client.wait_all(["x", "y"], 0.05)
    other.set({"y": b""})
    assert client.wait_all(["x", "y"], 60)
    other.close()


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
    ("case", "reports"),
    [("", ["1 was lost"]), ("claimed", []), ("withdrawn", ["0 was lost", "2 was lost"])],
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


def test_standard_error_is_held_while_there_may_be_something_to_report(server: Serving, client: Connection) -> None:
    """A launcher may wait until no process holds it, and the server lives seconds longer than the job."""
    client.on_disconnect("lost", "0")
    server.lose_owner()
    client.count()
    assert not server.released.wait(0.2)
    client.cancel_on_disconnect("lost", "0")
    assert server.released.wait(20)


def test_without_its_owner_it_takes_no_client_and_ends_after_the_last_one(server: Serving, client: Connection) -> None:
    server.lose_owner()
    assert client.count() == 0
    with pytest.raises(StartupTimeout):
        Connection(server.address(), 0.1)
    assert not server.ended(0.2)
    client.close()
    assert server.ended(server_module._LINGER_SECONDS / 2)


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (protocol.HELLO + bytes(protocol.NONCE_BYTES), "another job than this one answers"),
        (b"220 smtp.example.org" + bytes(protocol.NONCE_BYTES), "another program than a cpudist job answers"),
        (b"", "another job, or another program than a cpudist job, answers"),
    ],
    ids=["no token", "another program", "nothing"],
)
def test_what_listens_without_the_token_is_not_taken_for_rank_0(greeting: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def pretend() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(greeting)
                if greeting.startswith(protocol.HELLO):
                    connection.recv(protocol.ANSWER_BYTES)
                    connection.sendall(bytes(protocol.PROOF_BYTES))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(StartupTimeout, match=reason):
            Connection(Address(("127.0.0.1",), listening.getsockname()[1], TOKEN, 5), 0.05)
        thread.join(60)


def test_a_host_that_cannot_be_reached_is_passed_over(server: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(StartupTimeout, match="Connection refused"):
        Connection(Address(("127.0.0.1",), port, TOKEN, 5), 0.1)
    several = Connection(Address(("127.0.0.2", "127.0.0.1"), server.port, TOKEN, 5), 5)
    assert (several.host, several.count()) == ("127.0.0.1", 0)
    several.close()


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
def test_unauthenticated_clients_read_nothing(
    server: Serving, client: Connection, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(server_module, "_HANDSHAKE_SECONDS", 0.5)
    client.set({"secret": b"TOP SECRET"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as unauthenticated:
        unauthenticated.sendall(words)
        answer = unauthenticated.recv(1)
        client.count()
        assert words or server.server._unauthenticated, "there is time left"
        try:
            while part := unauthenticated.recv(4096):  # to the end of the connection, which the server makes
                answer += part
        except ConnectionResetError:
            pass
    assert answer[: len(protocol.HELLO)] == protocol.HELLO
    assert len(answer) == protocol.GREETING_BYTES
    assert client.get(["secret"]) == [b"TOP SECRET"]


def test_of_many_unauthenticated_clients_the_most_frequent_address_leaves(server: Serving, client: Connection) -> None:
    quiet = socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=("127.0.0.3", 0))
    flood = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(300)]
    newcomer = Connection(server.address(), 60)
    newcomer.set({"key": b"value"})
    assert client.get(["key"]) == [b"value"]
    most = server_module._MOST_UNAUTHENTICATED
    assert most - 1 <= len(server.server._unauthenticated) <= most, "the newcomer may have been one of them"
    assert {peer.address for peer in server.server._unauthenticated} == {"127.0.0.1", "127.0.0.3"}
    newcomer.close(), quiet.close()
    for one in flood:
        one.close()


@pytest.mark.parametrize(
    "words",
    [b"\xff" * 50, protocol.pack(Code.ADD, b"key", b"no number"), protocol.pack(Code.ADD, b"key")],
    ids=["noise", "no number", "a field is missing"],
)
def test_a_bad_frame_disconnects_its_client_alone(server: Serving, client: Connection, words: bytes) -> None:
    broken = server.connect()
    broken._socket.sendall(words)
    with pytest.raises(StoreLost):
        broken.count()
    assert client.count() == 0


def test_a_late_answer_is_not_taken_for_that_of_another_request(server: Serving, store: JobStore) -> None:
    store.set("x", "hello")
    asking = server.connect()
    asking._socket.sendall(protocol.pack(Code.COUNT))  # a request whose answer nobody has waited for
    with pytest.raises(StoreLost, match="COUNT where GET was asked"):
        asking.get(["x"])
    assert asking.closed
    store._connection()._socket.sendall(protocol.pack(Code.COUNT))
    with pytest.raises(StoreLost):
        store.get("x")
    assert store.get("x") == b"hello", "on a new connection"


def test_no_request_ends_the_server(server: Serving, client: Connection) -> None:
    client.add("n", 2**63 - 1)
    with pytest.raises(StoreLost):
        server.connect().add("n", 1)
    waiting = [server.connect() for _ in range(300)]
    for number, one in enumerate(waiting):
        one.on_disconnect("lost", str(number))
        one._socket.sendall(protocol.pack(Code.WAIT_ANY, protocol.number(60_000), b"/lost"))
        one._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for one in waiting:  # all are reset while they are told of each other
        one.close()
    assert client.wait_all(["lost"], 60)
    assert client.count() == 2


def test_both_ends_notice_a_network_that_is_down(server: Serving, client: Connection) -> None:
    """By the kernel's options, as the sockets of a connection have them: tcp(7)."""
    (peer,) = server.server._peers
    for end in (client._socket, peer.transport.get_extra_info("socket")):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT", "TCP_NODELAY")
        set_to = [end.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) for option in options]
        assert set_to == [2, 2, 3, 1000 * KEEPALIVE_SECONDS, 1], "probes after 2, 4, 6 seconds; an answer until 8"
    with socket.socket() as one:
        protocol.enable_keepalive(one, 0.5)
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
    assert [keepalive_timeout(seconds) for seconds in (1, 10, 20, 300)] == [5, 5, 10, 30]


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
