"""The job's store: keys and values, for those who know the job's token. Run by rank 0 as a process of its own.

    python -m cpudist.rendezvous.server      reads one JSON line: token, addresses, port, silence

A process, so that it answers whatever rank 0 is doing, and knows of its end as of any other rank's: from connections
that break. It prints the port, and ends when its standard input has ended and nobody is connected any more, at the
latest a few seconds later. It needs nothing but Python, and no signal that is meant for the job ends it.
"""

from __future__ import annotations

import heapq
import json
import resource
import secrets
import selectors
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cpudist.rendezvous import wire
from cpudist.rendezvous.wire import Code

_HANDSHAKE_SECONDS = 5.0
_STRANGERS = 128  # who may be at the handshake at a time; of more, the oldest of the most numerous address go
_LINGER_SECONDS = 5.0  # for the others, after rank 0's process has ended
_BACKLOG = 4096
_CHUNK_BYTES = 1 << 16


@dataclass(eq=False)
class _Peer:
    connection: socket.socket
    address: str
    since: float
    nonce: bytes
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    wills: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: _Wait | None = None


@dataclass(eq=False)
class _Wait:
    code: Code
    keys: list[bytes]


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
        self._values: dict[bytes, bytes] = {}
        self._since: dict[bytes, float] = {}  # when each was set last
        self._peers: set[_Peer] = set()
        self._strangers: dict[_Peer, None] = {}  # of them, who are still at the handshake; the oldest first
        self._waiting: defaultdict[bytes, set[_Peer]] = defaultdict(set)
        self._deadlines: list[tuple[float, int, _Peer, _Wait]] = []
        self._selector = selectors.DefaultSelector()
        for one in listening:
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, self._accept)
        self._answers: dict[Code, Callable[[_Peer, list[bytes]], bytes | None]] = {
            Code.SET: self._set,
            Code.GET: self._get,
            Code.ADD: self._add,
            Code.APPEND: self._append,
            Code.COMPARE_SET: self._compare_set,
            Code.DELETE: self._delete,
            Code.COUNT: lambda _peer, _fields: wire.pack(Code.COUNT, wire.number(len(self._values))),
            Code.AGES: self._ages,
            Code.CHECK: lambda _peer, keys: wire.pack(Code.CHECK, wire.number(all(k in self._values for k in keys))),
            Code.WAIT_ALL: lambda peer, fields: self._wait(peer, Code.WAIT_ALL, fields),
            Code.WAIT_ANY: lambda peer, fields: self._wait(peer, Code.WAIT_ANY, fields),
            Code.WILL: self._will,
            Code.WITHDRAW: self._withdraw,
        }

    def run(self, owner: int) -> None:
        """Serve until `owner`, a file descriptor, has come to its end, and those who are connected have gone."""
        ends: list[float] = []
        self._selector.register(owner, selectors.EVENT_READ, lambda _file: ends.append(time.monotonic()))
        while not ends or (self._peers and time.monotonic() < ends[0] + _LINGER_SECONDS):
            for key, events in self._selector.select(self._pause()):
                key.data(key.fileobj) if not isinstance(key.data, _Peer) else self._serve(key.data, events)
            if ends:
                with suppress(KeyError):
                    self._selector.unregister(owner)
            self._end_waits()
            self._show_out()

    # Coming and going

    def _accept(self, listening: socket.socket) -> None:
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
        self._selector.register(connection, selectors.EVENT_READ, peer)
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
        self._forget_wait(peer)
        for key, value in peer.wills:
            self._append(peer, [key, value + f" {how}\n".encode()])

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
            except (KeyError, ValueError, IndexError):
                raise wire.Garbage(f"code {code} with {len(fields)} fields") from None
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
        if self._selector.get_key(peer.connection).events != events:
            self._selector.modify(peer.connection, events, peer)

    # Keys and values

    def _set(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        for key, value in zip(fields[::2], fields[1::2], strict=True):
            self._put(key, value)
        return wire.pack(Code.SET)

    def _get(self, _peer: _Peer, keys: list[bytes]) -> bytes:
        if any(key not in self._values for key in keys):
            return wire.pack(Code.MISSING)
        return wire.pack(Code.GET, *(self._values[key] for key in keys))

    def _add(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, amount = fields
        total = int(self._values.get(key, b"0")) + wire.to_number(amount)
        self._put(key, str(total).encode())  # as text, which `get` returns, as torch's stores have it
        return wire.pack(Code.ADD, wire.number(total))

    def _append(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        self._put(key, self._values.get(key, b"") + value)
        return wire.pack(Code.APPEND)

    def _compare_set(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        """As `torch.distributed.Store.compare_set`: a key that is missing is set if `expected` is empty."""
        key, expected, desired = fields
        if self._values.get(key, b"") == expected:
            self._put(key, desired)
        return wire.pack(Code.COMPARE_SET, self._values.get(key, expected))

    def _delete(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        (key,) = fields
        return wire.pack(Code.DELETE, wire.number(self._values.pop(key, None) is not None))

    def _ages(self, _peer: _Peer, keys: list[bytes]) -> bytes:
        now = time.monotonic()
        ages = (round(1000 * (now - self._since[key])) if key in self._values else -1 for key in keys)
        return wire.pack(Code.AGES, *map(wire.number, ages))

    def _put(self, key: bytes, value: bytes) -> None:
        self._values[key] = value
        self._since[key] = time.monotonic()
        for peer in list(self._waiting.get(key, ())):
            if peer.waiting is not None and self._is_over(peer.waiting):
                self._answer_wait(peer, True)

    def _will(self, peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        peer.wills.append((key, value))
        return wire.pack(Code.WILL)

    def _withdraw(self, _peer: _Peer, fields: list[bytes]) -> bytes:
        key, value = fields
        for peer in self._peers:
            with suppress(ValueError):
                peer.wills.remove((key, value))
        return wire.pack(Code.WITHDRAW)

    # Waiting

    def _wait(self, peer: _Peer, code: Code, fields: list[bytes]) -> bytes | None:
        milliseconds, *keys = fields
        wait = _Wait(code, keys)
        if self._is_over(wait):
            return wire.pack(code, wire.number(1))
        peer.waiting = wait
        for key in keys:
            self._waiting[key].add(peer)
        deadline = time.monotonic() + wire.to_number(milliseconds) / 1000
        heapq.heappush(self._deadlines, (deadline, id(wait), peer, wait))
        return None

    def _is_over(self, wait: _Wait) -> bool:
        enough = all if wait.code == Code.WAIT_ALL else any
        return enough(key in self._values for key in wait.keys)

    def _answer_wait(self, peer: _Peer, there: bool) -> None:
        assert peer.waiting is not None
        reply = wire.pack(peer.waiting.code, wire.number(there))
        self._forget_wait(peer)
        self._send(peer, reply)

    def _forget_wait(self, peer: _Peer) -> None:
        if peer.waiting is not None:
            for key in peer.waiting.keys:
                self._waiting[key].discard(peer)
                if not self._waiting[key]:
                    del self._waiting[key]
            peer.waiting = None

    def _end_waits(self) -> None:
        now = time.monotonic()
        while self._deadlines:
            deadline, _, peer, wait = self._deadlines[0]
            if peer.waiting is wait and deadline > now:
                return
            heapq.heappop(self._deadlines)
            if peer.waiting is wait:
                self._answer_wait(peer, False)

    def _pause(self) -> float:
        """Seconds until there is something to do although nobody says anything."""
        until = self._deadlines[0][0] - time.monotonic() if self._deadlines else 1.0
        return min(max(until, 0.0), 1.0)


def main() -> None:
    """Serve as standard input says, for as long as it stays open."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the ranks still have to tell each other how they end
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wishes = json.loads(sys.stdin.readline())
    try:
        listening = listen(wishes["addresses"], wishes["port"])
    except OSError as error:
        print(f"error {error.strerror}".split(" (while")[0], flush=True)
        return
    print(listening[0].getsockname()[1], flush=True)
    Server(bytes.fromhex(wishes["token"]), listening, wishes["silence"]).run(sys.stdin.fileno())


def listen(addresses: list[str], port: int) -> list[socket.socket]:
    """Listen at `addresses`, or everywhere if there are none, at one port; 0 is any that is free.

    Raises:
        OSError: an address is not this machine's, or the port is taken.
    """
    if addresses:
        first = _listen_at(addresses[0], port)
        return [first, *(_listen_at(address, first.getsockname()[1]) for address in addresses[1:])]
    if socket.has_dualstack_ipv6():
        return [socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)]
    return [socket.create_server(("", port), backlog=_BACKLOG)]


def _listen_at(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)


if __name__ == "__main__":
    main()
