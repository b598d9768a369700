"""The store's protocol: frames, who is let in, and what bad requests do."""

import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import TOKEN, Serving

from cpudist.errors import StartupTimeout
from cpudist.store import protocol
from cpudist.store import server as server_module
from cpudist.store.client import Address, Connection, StoreLost
from cpudist.store.protocol import Code, Garbage
from cpudist.store.torch_store import JobStore


@given(fields=st.lists(st.binary(max_size=50), max_size=6), code=st.sampled_from(Code), cut=st.integers(1, 400))
def test_frames_survive_the_wire_in_any_pieces(fields: list[bytes], code: Code, cut: int) -> None:
    sent = protocol.pack(code, *fields) + protocol.pack(Code.COUNT)
    buffer, got = bytearray(), []
    for at in range(0, len(sent), cut):
        buffer += sent[at : at + cut]
        got += protocol.frames(buffer)
    assert got == [(code, fields), (Code.COUNT, [])]
    assert not buffer


@pytest.mark.parametrize(
    "frame",
    [b"\x00\0\0\0\0", b"\x12\0\0\0\0", b"\x02\x40\0\0\x01", b"\x02\0\0\0\3\0\0\0", b"\x02\0\0\0\5\0\0\0\2x"],
    ids=["code 0", "code 18", "more than 1 GiB", "half a length", "a field longer than its frame"],
)
def test_other_bytes_than_frames_are_refused_at_once(frame: bytes) -> None:
    with pytest.raises(Garbage):
        list(protocol.frames(bytearray(frame)))
    assert list(protocol.frames(bytearray(b"\x02\x40\0\0\0"))) == [], "a frame of 1 GiB is awaited"


def test_a_proof_depends_on_the_token_the_side_and_both_challenges_in_order() -> None:
    given = (b"token", b"client", b"one", b"other")
    others = [(b"guess", *given[1:]), (b"token", b"server", *given[2:]), (*given[:2], b"other", b"one")]
    assert len({protocol.proof(*arguments) for arguments in [given, *others]}) == 4
    assert len(protocol.proof(*given)) == protocol.PROOF_BYTES


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (protocol.HELLO + bytes(protocol.NONCE_BYTES), "another job answers"),
        (b"220 smtp.example.org" + bytes(protocol.NONCE_BYTES), "a program that is no cpudist job answers"),
        (b"", "another job, or a program that is no cpudist job, answers"),
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
    [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3, b"\0" * 100, b"", protocol.pack(Code.GET, b"/secret") * 10],
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
