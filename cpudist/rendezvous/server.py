"""The job's store, for those who know the job's token: who is connected, what they ask for, who is shown out.

It needs nothing but Python; serve.py runs it.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cpudist.rendezvous import wire
from cpudist.rendezvous.values import Values, Wait
from cpudist.rendezvous.wire import Code

_HANDSHAKE_SECONDS = 5.0
_STRANGERS = 128  # who may be at the handshake at a time; of more, the oldest of the most numerous address go
_LINGER_SECONDS = 5.0  # for the others, after rank 0's process has ended
_CHUNK_BYTES = 1 << 16
_PAUSE_SECONDS = 1.0  # at most, for there may be a stranger to show out


@dataclass(eq=False)
class _Peer:
    connection: socket.socket
    address: str
    since: float
    nonce: bytes
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    wills: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: Wait | None = None


class Server:
    """Serves the store to whoever connects and knows the token.

    Args:
        token: the job's.
        listening: where to accept, already bound.
        silence: seconds after which a peer that the network no longer reaches counts as gone.
    """

    def __init__(self, token: bytes, listening: list[socket.socket], silence: float) -> None:
        self._token = token
        self._silence = silence
        self._values = Values()
        self._peers: set[_Peer] = set()
        self._wills: list[tuple[bytes, bytes]] = []  # of those that have gone, still to be executed
        self._last_words: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}  # of wills
        self._unsaid: list[tuple[bytes, bytes]] = []  # of those that have gone; the first to go first
        self._strangers: dict[_Peer, None] = {}  # of them, who are still at the handshake; the oldest first
        self._owned = True
        self._end = 0.0  # when to stop waiting for the peers, once the owner has gone
        self._selector = selectors.DefaultSelector()
        self._listening = listening
        for one in listening:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, partial(self._accept, one))
        self._answers: dict[Code, Callable[[_Peer, list[bytes]], bytes | None]] = {
            Code.SET: self._set,
            Code.GET: self._get,
            Code.ADD: self._add,
            Code.APPEND: self._append,
            Code.COMPARE_SET: self._compare_set,
            Code.DELETE: self._delete,
            Code.COUNT: self._count,
            Code.CHECK: self._check,
            Code.AGES: self._ages,
            Code.WAIT_ALL: self._wait_all,
            Code.WAIT_ANY: self._wait_any,
            Code.WILL: self._will,
            Code.WITHDRAW: self._withdraw,
            Code.LAST_WORDS: self._keep_last_words,
        }

    def run(self, owner: int, fall_silent: Callable[[], None]) -> list[str]:
        """Serve until `owner`, a file descriptor, has come to its end, and those who are connected have gone.

        `fall_silent` is called as soon as the owner has gone and there will be nothing to say.

        Returns:
            The last words of peers that were lost, in this order, if no other peer has lived to say so.
        """
        self._selector.register(owner, selectors.EVENT_READ, lambda _events: self._lose_owner(owner))
        while self._owned or (self._peers and time.monotonic() < self._end):
            for key, events in self._selector.select(min(self._values.expire() or _PAUSE_SECONDS, _PAUSE_SECONDS)):
                key.data(events)
            self._show_out()
            self._execute_wills()
            if not self._owned and not self._may_speak():
                fall_silent()
        return [text.decode(errors="replace") for text in self._still_unsaid()]

    def _may_speak(self) -> bool:
        return bool(self._still_unsaid()) or any(peer.wills for peer in self._peers)

    def _still_unsaid(self) -> list[bytes]:
        return [text for unless, text in self._unsaid if not self._values.has_all([unless])]

    def _lose_owner(self, owner: int) -> None:
        self._selector.unregister(owner)
        for listening in self._listening:  # who comes now looks for another job
            self._selector.unregister(listening)
            listening.close()
        self._owned = False
        self._end = time.monotonic() + _LINGER_SECONDS

    # Coming and going

    def _accept(self, listening: socket.socket, _events: int) -> None:
        try:
            connection, address = listening.accept()
        except OSError:  # it has gone again, or there are no more descriptors: then the oldest stranger goes
            self._show_out(max(0, len(self._strangers) - 1))
            return
        connection.setblocking(False)
        wire.notice_silence(connection, self._silence)
        peer = _Peer(connection, str(address[0]), time.monotonic(), secrets.token_bytes(wire.NONCE_BYTES))
        self._peers.add(peer)
        self._strangers[peer] = None
        self._selector.register(connection, selectors.EVENT_READ, partial(self._serve, peer))
        self._send(peer, wire.HELLO + peer.nonce)

    def _show_out(self, most: int = _STRANGERS) -> None:
        """End the connections of strangers that take too long at the handshake, or are too many."""
        late = time.monotonic() - _HANDSHAKE_SECONDS
        while self._strangers and next(iter(self._strangers)).since < late:
            self._drop(next(iter(self._strangers)), "closed")
        while len(self._strangers) > most:
            ((address, _),) = Counter(peer.address for peer in self._strangers).most_common(1)
            self._drop(next(peer for peer in self._strangers if peer.address == address), "closed")

    def _drop(self, peer: _Peer, how: str) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._strangers.pop(peer, None)
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.waiting is not None:
            self._values.forget(peer.waiting)
        self._wills += [(key, value + f" {how}\n".encode()) for key, value in peer.wills]
        if how == "closed":
            self._unsaid += [self._last_words[will] for will in peer.wills if will in self._last_words]

    def _execute_wills(self) -> None:
        """Not where a peer is dropped, which may be in the middle of telling others that another one was."""
        while self._wills:
            self._values.append(*self._wills.pop(0))

    # Bytes

    def _serve(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and peer in self._peers:
                data = peer.connection.recv(_CHUNK_BYTES)
                peer.received += data
                self._understand(peer)
                if not data:
                    self._drop(peer, "closed")
        except BlockingIOError:
            pass
        except TimeoutError:
            self._drop(peer, "silent")
        except (OSError, wire.Garbage) as error:
            unreachable = isinstance(error, OSError) and not isinstance(error, ConnectionError)
            self._drop(peer, "silent" if unreachable else "closed")

    def _understand(self, peer: _Peer) -> None:
        if peer in self._strangers:
            if len(peer.received) < wire.ANSWER_BYTES:
                return
            nonce = bytes(peer.received[: wire.NONCE_BYTES])
            answer = bytes(peer.received[wire.NONCE_BYTES : wire.ANSWER_BYTES])
            if not wire.same(answer, wire.proof(self._token, b"client", peer.nonce, nonce)):
                raise wire.Garbage("a wrong proof")
            del peer.received[: wire.ANSWER_BYTES]
            del self._strangers[peer]
            self._send(peer, wire.proof(self._token, b"server", nonce, peer.nonce))
        for code, fields in wire.frames(peer.received):
            try:
                reply = self._answers[code](peer, fields)
            except Exception as error:  # noqa: BLE001 - whatever one peer asks for, the others go on
                raise wire.Garbage(f"code {code} with {len(fields)} fields: {error!r}") from None
            if reply is not None:
                self._send(peer, reply)

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.unsent += data
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                del peer.unsent[: peer.connection.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError as error:  # what was said to it is lost; so is it
            self._drop(peer, "silent" if isinstance(error, TimeoutError) else "closed")
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        registered = self._selector.get_key(peer.connection)
        if registered.events != events:
            self._selector.modify(peer.connection, events, registered.data)

    # What peers ask for

    def _set(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        for key, value in zip(fields[::2], fields[1::2], strict=True):
            self._values.set(key, value)
        return wire.pack(Code.SET)

    def _get(self, _peer: _Peer, keys: list[bytes]) -> bytes:
        values = self._values.get(keys)
        return wire.pack(Code.MISSING) if values is None else wire.pack(Code.GET, *values)

    def _add(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, amount = fields
        return wire.pack(Code.ADD, wire.number(self._values.add(key, wire.to_number(amount))))

    def _append(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        self._values.append(key, value)
        return wire.pack(Code.APPEND)

    def _compare_set(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, expected, desired = fields
        return wire.pack(Code.COMPARE_SET, self._values.compare_set(key, expected, desired))

    def _delete(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        (key,) = fields
        return wire.pack(Code.DELETE, wire.number(self._values.delete(key)))

    def _count(self, _peer: _Peer, _fields: list[bytes]) -> bytes:
        return wire.pack(Code.COUNT, wire.number(len(self._values)))

    def _check(self, _peer: _Peer, keys: list[bytes]) -> bytes:
        return wire.pack(Code.CHECK, wire.number(self._values.has_all(keys)))

    def _ages(self, _peer: _Peer, keys: list[bytes]) -> bytes:
        ages = map(self._values.age, keys)
        return wire.pack(Code.AGES, *(wire.number(-1 if age is None else round(1000 * age)) for age in ages))

    def _wait_all(self, peer: _Peer, fields: list[bytes]) -> None:
        self._wait(peer, Code.WAIT_ALL, all, fields)

    def _wait_any(self, peer: _Peer, fields: list[bytes]) -> None:
        self._wait(peer, Code.WAIT_ANY, any, fields)

    def _wait(self, peer: _Peer, code: Code, enough: Callable[[Iterable[bool]], bool], fields: list[bytes]) -> None:
        milliseconds, *keys = fields
        peer.waiting = Wait(keys, enough, lambda there: self._send(peer, wire.pack(code, wire.number(there))))
        self._values.wait(peer.waiting, wire.to_number(milliseconds) / 1000)

    def _will(self, peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        peer.wills.append((key, value))
        return wire.pack(Code.WILL)

    def _keep_last_words(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, value, unless, text = fields
        self._last_words[key, value] = unless, text
        return wire.pack(Code.LAST_WORDS)

    def _withdraw(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        self._last_words.pop((key, value), None)
        for peer in self._peers:
            with suppress(ValueError):
                peer.wills.remove((key, value))
        return wire.pack(Code.WITHDRAW)
