"""Authenticated key-value server. Clients without the token are disconnected.

It needs only the standard library; serve.py runs it.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from cpudist.store import protocol
from cpudist.store.protocol import Code
from cpudist.store.values import Values, Wait

_Fields = Sequence[bytes]

_HANDSHAKE_SECONDS = 5.0
# Most clients in the handshake at once. Beyond that, the oldest client of the most frequent address is disconnected.
_MOST_UNAUTHENTICATED = 128
_LINGER_SECONDS = 5.0  # Longest time to serve other ranks after rank 0's process has ended.
_CHUNK_BYTES = 1 << 16
_PAUSE_SECONDS = 1.0  # Longest interval between checks for peers that are slow in the handshake.


@dataclass(eq=False)
class _Peer:
    connection: socket.socket
    address: str
    since: float
    nonce: bytes
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    on_disconnect: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: Wait | None = None


class Server:
    """Serve the store on bound sockets to all clients that have the token; see `StoreProcess`."""

    def __init__(self, token: bytes, listening: list[socket.socket], keepalive_timeout: float) -> None:
        self._token = token
        self._keepalive_timeout = keepalive_timeout
        self._values = Values()
        self._peers: set[_Peer] = set()
        self._due: list[tuple[bytes, bytes]] = []  # lines to append for disconnected peers
        # Maps (key, value) of an ON_DISCONNECT to (unless, text).
        self._reports: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}
        self._due_reports: list[tuple[bytes, bytes]] = []  # reports of disconnected peers, oldest first
        self._unauthenticated: dict[_Peer, None] = {}  # peers in the handshake, the oldest first
        self._owned = True
        self._end = 0.0  # time to stop serving after the owner has ended
        self._selector = selectors.DefaultSelector()
        self._listening = listening
        for one in listening:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, partial(self._accept, one))

    def run(self, owner: int, release_output: Callable[[], None]) -> list[str]:
        """Serve until `owner` has ended, then until no client is connected, but at most 5 seconds longer.

        Args:
            owner: a file descriptor that reaches end of file when rank 0's process ends.
            release_output: called when the owner has ended and nothing is left to report.

        Returns:
            The reports about lost clients that no remaining client has made, in the order of the losses.
        """
        self._selector.register(owner, selectors.EVENT_READ, lambda _events: self._lose_owner(owner))
        while self._owned or (self._peers and time.monotonic() < self._end):
            for key, events in self._selector.select(min(self._values.expire() or _PAUSE_SECONDS, _PAUSE_SECONDS)):
                key.data(events)
            self._drop_unauthenticated()
            self._append_due()
            if not (self._owned or self._open_reports() or any(peer.on_disconnect for peer in self._peers)):
                release_output()
        return [text.decode(errors="replace") for text in self._open_reports()]

    def _open_reports(self) -> list[bytes]:
        return [text for unless, text in self._due_reports if not self._values.has_all([unless])]

    def _lose_owner(self, owner: int) -> None:
        self._selector.unregister(owner)
        for listening in self._listening:  # clients that connect now belong to another job
            self._selector.unregister(listening)
            listening.close()
        self._owned = False
        self._end = time.monotonic() + _LINGER_SECONDS

    # Connections

    def _accept(self, listening: socket.socket, _events: int) -> None:
        try:
            connection, address = listening.accept()
        except OSError:
            # The client has disconnected, or file descriptors have run out: disconnect a client in the handshake.
            self._drop_unauthenticated(max(0, len(self._unauthenticated) - 1))
            return
        connection.setblocking(False)
        protocol.enable_keepalive(connection, self._keepalive_timeout)
        peer = _Peer(connection, str(address[0]), time.monotonic(), secrets.token_bytes(protocol.NONCE_BYTES))
        self._peers.add(peer)
        self._unauthenticated[peer] = None
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, peer))
        self._send(peer, protocol.HELLO + peer.nonce)

    def _drop_unauthenticated(self, most: int = _MOST_UNAUTHENTICATED) -> None:
        """Disconnect peers that take too long in the handshake, and peers in excess of `most`."""
        late = time.monotonic() - _HANDSHAKE_SECONDS
        while self._unauthenticated and next(iter(self._unauthenticated)).since < late:
            self._drop(next(iter(self._unauthenticated)), "ended")
        while len(self._unauthenticated) > most:
            ((address, _),) = Counter(peer.address for peer in self._unauthenticated).most_common(1)
            self._drop(next(peer for peer in self._unauthenticated if peer.address == address), "ended")

    def _drop(self, peer: _Peer, how: Literal["ended", "unreachable"]) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._unauthenticated.pop(peer, None)
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.waiting is not None:
            self._values.forget(peer.waiting)
        self._due += [(key, value + f" {how}\n".encode()) for key, value in peer.on_disconnect]
        if how == "ended":
            self._due_reports += [self._reports[entry] for entry in peer.on_disconnect if entry in self._reports]

    def _append_due(self) -> None:
        """Append the lines of disconnected peers. `_drop` only collects them, because an append may call `_drop`."""
        while self._due:
            self._values.append(*self._due.pop(0))

    # Bytes

    def _serve(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer in self._peers:
                data = peer.connection.recv(_CHUNK_BYTES)
                peer.received += data
                self._handle(peer)
                if not data:
                    self._drop(peer, "ended")
        except BlockingIOError:
            pass
        except (OSError, protocol.Garbage) as error:
            self._drop(peer, "ended" if isinstance(error, (ConnectionError, protocol.Garbage)) else "unreachable")

    def _handle(self, peer: _Peer) -> None:
        if peer in self._unauthenticated:
            if len(peer.received) < protocol.ANSWER_BYTES:
                return
            nonce = bytes(peer.received[: protocol.NONCE_BYTES])
            answer = bytes(peer.received[protocol.NONCE_BYTES : protocol.ANSWER_BYTES])
            if not hmac.compare_digest(answer, protocol.proof(self._token, b"client", peer.nonce, nonce)):
                raise protocol.Garbage("a wrong proof")
            del peer.received[: protocol.ANSWER_BYTES]
            del self._unauthenticated[peer]
            self._send(peer, protocol.proof(self._token, b"server", nonce, peer.nonce))
        for code, fields in protocol.frames(peer.received):
            try:
                reply = getattr(self, f"_{code.name.lower()}")(peer, *fields)
            except Exception as error:  # noqa: BLE001 - a bad request disconnects its peer alone
                raise protocol.Garbage(f"code {code} with {len(fields)} fields: {error!r}") from None
            if reply is not None:
                self._answer(peer, code, reply)

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.unsent += data
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.connection.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError as error:  # the peer misses this answer, so its connection is useless
            self._drop(peer, "unreachable" if isinstance(error, TimeoutError) else "ended")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        registered = self._selector.get_key(peer.connection)
        if registered.events != events:
            self._selector.modify(peer.connection, events, registered.data)

    # Requests: each method is named after its code. It returns the answer's fields, or None if it answers itself.

    def _set(self, _peer: _Peer, *fields: bytes) -> _Fields:
        for key, value in zip(fields[::2], fields[1::2], strict=True):
            self._values.set(key, value)
        return ()

    def _get(self, peer: _Peer, *keys: bytes) -> _Fields | None:
        values = self._values.get(keys)
        if values is None:
            self._answer(peer, Code.MISSING, ())
        return values

    def _add(self, _peer: _Peer, key: bytes, amount: bytes) -> _Fields:
        return [protocol.number(self._values.add(key, protocol.to_number(amount)))]

    def _append(self, _peer: _Peer, key: bytes, value: bytes) -> _Fields:
        self._values.append(key, value)
        return ()

    def _compare_set(self, _peer: _Peer, key: bytes, expected: bytes, desired: bytes) -> _Fields:
        return [self._values.compare_set(key, expected, desired)]

    def _delete(self, _peer: _Peer, key: bytes) -> _Fields:
        return [protocol.number(self._values.delete(key))]

    def _count(self, _peer: _Peer) -> _Fields:
        return [protocol.number(len(self._values))]

    def _check(self, _peer: _Peer, *keys: bytes) -> _Fields:
        return [protocol.number(self._values.has_all(keys))]

    def _ages(self, _peer: _Peer, *keys: bytes) -> _Fields:
        ages = map(self._values.age, keys)
        return [protocol.number(-1 if age is None else round(1000 * age)) for age in ages]

    def _clock(self, _peer: _Peer) -> _Fields:
        return [protocol.number(time.time_ns())]

    def _wait_all(self, peer: _Peer, milliseconds: bytes, *keys: bytes) -> None:
        self._wait(peer, Code.WAIT_ALL, milliseconds, keys)

    def _wait_any(self, peer: _Peer, milliseconds: bytes, *keys: bytes) -> None:
        self._wait(peer, Code.WAIT_ANY, milliseconds, keys)

    def _wait(self, peer: _Peer, code: Code, milliseconds: bytes, keys: _Fields) -> None:
        enough = all if code is Code.WAIT_ALL else any
        peer.waiting = Wait(keys, enough, lambda there: self._answer(peer, code, [protocol.number(there)]))
        self._values.wait(peer.waiting, protocol.to_number(milliseconds) / 1000)

    def _on_disconnect(self, peer: _Peer, key: bytes, value: bytes) -> _Fields:
        peer.on_disconnect.append((key, value))
        return ()

    def _report_on_disconnect(self, _peer: _Peer, key: bytes, value: bytes, unless: bytes, text: bytes) -> _Fields:
        self._reports[key, value] = unless, text
        return ()

    def _cancel_on_disconnect(self, _peer: _Peer, key: bytes, value: bytes) -> _Fields:
        self._reports.pop((key, value), None)
        for peer in self._peers:
            with suppress(ValueError):
                peer.on_disconnect.remove((key, value))
        return ()

    def _answer(self, peer: _Peer, code: Code, fields: _Fields) -> None:
        self._send(peer, protocol.pack(code, *fields))
