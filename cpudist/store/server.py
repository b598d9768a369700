"""Authenticated key-value server, in its own process beside rank 0. Clients without the token are disconnected.

The process answers even while rank 0 is busy. It detects the end of rank 0, as of any other rank, by a broken
connection. It reads one line of JSON (token, addresses, port, keepalive_timeout) from standard input and prints the
port, or why it cannot listen. After the end of standard input it exits as soon as no client is connected, at the latest
after 5 seconds. It ignores the job's signals: if a launcher kills all ranks at once, only this process can report the
first lost rank. It needs only the standard library.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import resource
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cpudist.console import say
from cpudist.store import protocol
from cpudist.store.protocol import Code
from cpudist.store.values import Values, Wait

_Fields = Sequence[bytes]

_HANDSHAKE_SECONDS = 5.0
# Limit of clients in the handshake at once. Beyond it, the oldest client of the most frequent address is disconnected.
_MOST_UNAUTHENTICATED = 128
_LINGER_SECONDS = 5.0  # Longest time to serve other ranks after rank 0's process has ended.
_BACKLOG = 4096


def main() -> None:
    """Serve with the options from standard input until it is closed and the clients have disconnected."""
    # Slurm sends signals to all processes of a rank, such as SIGUSR1 before the time limit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # ranks report through the store why they end
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = json.loads(sys.stdin.readline())
    try:
        listening = listen(options["addresses"], options["port"])
    except OSError as error:
        print(f"error {error.strerror}".split(" (while")[0], flush=True)
        return
    print(listening[0].getsockname()[1], flush=True)
    asyncio.run(_serve(Server(bytes.fromhex(options["token"]), listening, options["keepalive_timeout"])))


async def _serve(server: Server) -> None:
    for text in (await server.run(sys.stdin.fileno(), _release_output))[:1]:  # later losses follow from the first
        say(text)


def _release_output() -> None:
    """Close the job's standard error, because a launcher may wait until no process has it open."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def listen(addresses: list[str], port: int) -> list[socket.socket]:
    """Listen on one port at all `addresses`; empty: at all addresses of this machine. Port 0 takes any free port."""
    if addresses:
        first = _listen_at(addresses[0], port)
        return [first, *(_listen_at(address, first.getsockname()[1]) for address in addresses[1:])]
    if socket.has_dualstack_ipv6():
        return [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)]
    return [socket.create_server(("", port))]


def _listen_at(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def _report_faults(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report exceptions in this server's code, but no OSError: without file descriptors asyncio accepts again later."""
    if not isinstance(context.get("exception"), OSError):
        loop.default_exception_handler(context)


class _Peer(asyncio.Protocol):
    """The connection with one client; asyncio calls its methods, which never wait."""

    transport: asyncio.Transport
    address: str
    socket: socket.socket
    deadline: asyncio.TimerHandle  # for the handshake

    def __init__(self, server: Server) -> None:
        self._server = server
        self._received = bytearray()
        self.authenticated = False
        self.nonce = secrets.token_bytes(protocol.NONCE_BYTES)
        self.on_disconnect: list[tuple[bytes, bytes]] = []
        self.waiting: Wait | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.address = transport, transport.get_extra_info("peername")[0]
        self.socket = transport.get_extra_info("socket")
        self._server.greet(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            self._server.handle(self, self._received)
        except protocol.Garbage:
            self.transport.abort()

    def eof_received(self) -> None:
        self.transport.abort()  # discards answers that the client will not read

    def connection_lost(self, error: Exception | None) -> None:
        self._server.lose(self, "ended" if error is None or isinstance(error, ConnectionError) else "unreachable")

    def answer(self, code: Code, fields: _Fields) -> None:
        self.transport.write(protocol.pack(code, *fields))


class Server:
    """Serve the store on bound sockets to all clients that have the token; see `StoreProcess`."""

    def __init__(self, token: bytes, listening: list[socket.socket], keepalive_timeout: float) -> None:
        self._token = token
        self._listening = listening
        self._keepalive_timeout = keepalive_timeout
        self._peers: set[_Peer] = set()
        # Maps (key, value) of an ON_DISCONNECT to (unless, text) of its report.
        self._reports: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}
        self._due_reports: list[tuple[bytes, bytes]] = []  # reports of disconnected peers, oldest first
        self._unauthenticated: dict[_Peer, None] = {}  # peers in the handshake, the oldest first
        self._changed = asyncio.Event()  # set when a peer has disconnected, or a report is cancelled

    async def run(self, owner: int, release_output: Callable[[], None]) -> list[str]:
        """Serve until rank 0 closes its end of the pipe `owner`, then while clients are connected, 5 seconds at most.

        Call `release_output` once nothing is left to report. Return the reports about lost clients that no remaining
        client has made, in the order of the losses.
        """
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(_report_faults)
        self._values = Values(loop)
        loop.add_reader(owner, ended.set)
        new_peer = partial(_Peer, self)
        servers = [await loop.create_server(new_peer, sock=one, backlog=_BACKLOG) for one in self._listening]
        await ended.wait()
        loop.remove_reader(owner)
        for server in servers:  # clients that connect now belong to another job
            server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while self._peers:
                    if not (self._open_reports() or any(peer.on_disconnect for peer in self._peers)):
                        release_output()
                    self._changed.clear()
                    await self._changed.wait()
        reports = [text.decode(errors="replace") for text in self._open_reports()]
        for peer in self._peers:
            peer.transport.abort()
        return reports

    def _open_reports(self) -> list[bytes]:
        return [text for unless, text in self._due_reports if not self._values.has_all([unless])]

    def greet(self, peer: _Peer) -> None:
        """Begin the handshake with a new client."""
        peer.deadline = asyncio.get_running_loop().call_later(_HANDSHAKE_SECONDS, peer.transport.abort)
        protocol.enable_keepalive(peer.socket, self._keepalive_timeout)
        self._peers.add(peer)
        self._unauthenticated[peer] = None
        if len(self._unauthenticated) > _MOST_UNAUTHENTICATED:
            ((address, _),) = Counter(other.address for other in self._unauthenticated).most_common(1)
            oldest = next(other for other in self._unauthenticated if other.address == address)
            del self._unauthenticated[oldest]
            oldest.transport.abort()
        peer.transport.write(protocol.HELLO + peer.nonce)

    def handle(self, peer: _Peer, received: bytearray) -> None:
        """Take the proof and complete requests from the front of `received`, and answer them, or raise Garbage."""
        if not peer.authenticated:
            if len(received) < protocol.ANSWER_BYTES:
                return
            nonce = bytes(received[: protocol.NONCE_BYTES])
            answer = bytes(received[protocol.NONCE_BYTES : protocol.ANSWER_BYTES])
            if not hmac.compare_digest(answer, protocol.proof(self._token, b"client", peer.nonce, nonce)):
                raise protocol.Garbage("a wrong proof")
            del received[: protocol.ANSWER_BYTES]
            del self._unauthenticated[peer]
            peer.authenticated = True
            peer.deadline.cancel()
            peer.transport.write(protocol.proof(self._token, b"server", nonce, peer.nonce))
        for code, fields in protocol.frames(received):
            try:
                reply = self._reply(peer, code, fields)
            except Exception as error:  # noqa: BLE001 - a bad request disconnects only its peer
                raise protocol.Garbage(f"code {code} with {len(fields)} fields: {error!r}") from None
            if reply is not None:
                peer.answer(code, reply)

    def lose(self, peer: _Peer, how: str) -> None:
        """Forget a disconnected client, and append the lines of its ON_DISCONNECT requests."""
        self._changed.set()
        self._peers.discard(peer)
        self._unauthenticated.pop(peer, None)
        peer.deadline.cancel()
        if peer.waiting is not None:
            self._values.forget(peer.waiting)
        if how == "ended":
            self._due_reports += [self._reports[entry] for entry in peer.on_disconnect if entry in self._reports]
        for key, value in peer.on_disconnect:
            self._values.append(key, value + f" {how}\n".encode())

    def _reply(self, peer: _Peer, code: Code, fields: _Fields) -> _Fields | None:
        """Carry out a request, and return the fields of its answer; None if it is answered in another way."""
        values, number = self._values, protocol.number
        match code, fields:
            case Code.GET, keys:
                found = values.get(keys)
                if found is None:
                    peer.answer(Code.MISSING, ())
                return found
            case Code.CHECK, keys:
                return [number(values.has_all(keys))]
            case Code.AGES, keys:
                return [number(-1 if age is None else round(1000 * age)) for age in map(values.age, keys)]
            case Code.SILENCES, [key]:
                of_key = [(peer, value) for peer in self._peers for one, value in peer.on_disconnect if one == key]
                return [part for peer, value in of_key for part in (value, number(protocol.silence(peer.socket)))]
            case Code.SET, pairs:
                for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                    values.set(key, value)
            case Code.APPEND, [key, value]:
                values.append(key, value)
            case Code.ADD, [key, amount]:
                return [number(values.add(key, protocol.to_number(amount)))]
            case Code.COMPARE_SET, [key, expected, desired]:
                return [values.compare_set(key, expected, desired)]
            case Code.DELETE, [key]:
                return [number(values.delete(key))]
            case Code.COUNT, []:
                return [number(len(values))]
            case Code.CLOCK, []:
                return [number(time.time_ns())]
            case Code.WAIT_ALL | Code.WAIT_ANY, [milliseconds, *keys]:
                enough = all if code is Code.WAIT_ALL else any
                peer.waiting = Wait(keys, enough, lambda there: peer.answer(code, [number(there)]))
                values.wait(peer.waiting, protocol.to_number(milliseconds) / 1000)
                return None
            case Code.ON_DISCONNECT, [key, value]:
                peer.on_disconnect.append((key, value))
            case Code.REPORT_ON_DISCONNECT, [key, value, unless, text]:
                self._reports[key, value] = unless, text
            case Code.CANCEL_ON_DISCONNECT, [key, value]:
                self._changed.set()
                self._reports.pop((key, value), None)
                for other in self._peers:
                    with suppress(ValueError):
                        other.on_disconnect.remove((key, value))
            case _:
                raise protocol.Garbage("it has another number of fields")
        return ()
