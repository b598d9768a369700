"""A client's connection with the job's store: one request at a time, each in bounded time."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from cpudist.console import first_line
from cpudist.errors import StartupTimeout
from cpudist.rendezvous import wire
from cpudist.rendezvous.wire import Code
from cpudist.waiting import poll

_ATTEMPT_SECONDS = 5.0  # for one address to answer
_ANSWER_SECONDS = 15.0  # for the server to answer what it can answer at once


class StoreLost(RuntimeError):
    """The job's store does not answer any more."""


@dataclass(frozen=True)
class Address:
    """Where the job's store is, and what proves that one belongs to the job.

    Attributes:
        hosts: its host's addresses; some may lead nowhere from here.
        port: the same at all of them.
        token: the job's secret; empty where there is no way to hand one out.
        silence: seconds after which a connection that the network no longer carries breaks.
        job: of all that use this server, one after the other, which; its keys are its own.
    """

    hosts: tuple[str, ...]
    port: int
    token: bytes = field(repr=False)
    silence: float
    job: str = ""


class Connection:
    """Asks the store. Not for two threads at a time.

    Every method raises `StoreLost` when the store does not answer: its process has ended, or the network is down.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        """Connect.

        Args:
            address: the store's.
            timeout: seconds for it to be reached.

        Raises:
            StartupTimeout: it cannot be reached in time, or somebody else answers there.
        """
        self._received = bytearray()
        self._job = address.job
        stranger = why = ""

        def reached() -> bool:
            nonlocal stranger, why
            for host in address.hosts:
                try:
                    self._socket = _connected(host, address, min(_ATTEMPT_SECONDS, timeout))
                    self.host = host
                    return True
                except wire.Garbage as error:
                    stranger = str(error)
                except OSError as error:
                    why = error.strerror or first_line(error)
            return False

        if not poll(reached, timeout):
            raise StartupTimeout(
                f"rank 0 cannot be reached from {socket.gethostname()} at port {address.port} of "
                f"{', '.join(address.hosts)} ({stranger or why}); is there a firewall between the nodes?"
            )

    def set(self, values: dict[str, bytes]) -> None:
        self._ask(Code.SET, *(part for key, value in values.items() for part in (self._name(key), value)))

    def get(self, keys: list[str]) -> list[bytes] | None:
        """The values of all keys; None if one of them is missing."""
        code, values = self._ask(Code.GET, *map(self._name, keys))
        return None if code == Code.MISSING else values

    def ages(self, keys: list[str]) -> list[float | None]:
        """For each key the seconds since it was set last; None where it is missing."""
        _, fields = self._ask(Code.AGES, *map(self._name, keys))
        return [None if age < 0 else age / 1000 for age in map(wire.to_number, fields)]

    def add(self, key: str, amount: int) -> int:
        return self._number(Code.ADD, self._name(key), wire.number(amount))

    def append(self, key: str, value: bytes) -> None:
        self._ask(Code.APPEND, self._name(key), value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set the key if it holds `expected` (missing: empty); returns what it holds afterwards."""
        return self._ask(Code.COMPARE_SET, self._name(key), expected, desired)[1][0]

    def delete(self, key: str) -> bool:
        return bool(self._number(Code.DELETE, self._name(key)))

    def count(self) -> int:
        """How many keys there are."""
        return self._number(Code.COUNT)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._number(Code.CHECK, *map(self._name, keys)))

    def wait_all(self, keys: list[str], timeout: float) -> bool:
        """Wait until all keys are there; False when `timeout` seconds have passed."""
        return self._wait(Code.WAIT_ALL, keys, timeout)

    def wait_any(self, keys: list[str], timeout: float) -> bool:
        """Wait until one of the keys is there; False when `timeout` seconds have passed."""
        return self._wait(Code.WAIT_ANY, keys, timeout)

    def will(self, key: str, value: str) -> None:
        """Let the server append a line to `key` when this connection breaks: `value`, and "closed" or "silent"."""
        self._ask(Code.WILL, self._name(key), value.encode())

    def last_words(self, key: str, value: str, unless: str, text: str) -> None:
        """Let the server say `text` if that will is executed and nobody lives to say so, and then to set `unless`."""
        self._ask(Code.LAST_WORDS, self._name(key), value.encode(), self._name(unless), text.encode())

    def withdraw(self, key: str, value: str) -> None:
        """Make that will void, whichever connection it came by."""
        self._ask(Code.WITHDRAW, self._name(key), value.encode())

    def interrupt(self) -> None:
        """End the connection under a thread that waits for an answer; it gets `StoreLost`."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection. In a forked child this leaves the parent's alone."""
        self._socket.close()

    @property
    def closed(self) -> bool:
        """Whether it is lost, and every question to it would be in vain."""
        return self._socket.fileno() < 0

    def _name(self, key: str) -> bytes:
        return f"{self._job}/{key}".encode()

    def _wait(self, code: Code, keys: list[str], timeout: float) -> bool:
        milliseconds = wire.number(round(1000 * timeout))
        return bool(self._number(code, milliseconds, *map(self._name, keys), within=timeout + _ANSWER_SECONDS))

    def _number(self, code: Code, *fields: bytes, within: float = _ANSWER_SECONDS) -> int:
        return wire.to_number(self._ask(code, *fields, within=within)[1][0])

    def _ask(self, code: Code, *fields: bytes, within: float = _ANSWER_SECONDS) -> tuple[Code, list[bytes]]:
        try:
            self._socket.settimeout(within)
            self._socket.sendall(wire.pack(code, *fields))
            answer = self._answer()
            if answer[0] not in (code, Code.MISSING):
                raise wire.Garbage(f"an answer to {answer[0].name} where {code.name} was asked")
            return answer
        except (OSError, wire.Garbage) as error:
            self.close()
            raise StoreLost(first_line(error)) from None
        except BaseException:  # an answer may still come, and the next question must not take it for its own
            self.close()
            raise

    def _answer(self) -> tuple[Code, list[bytes]]:
        while True:
            for answer in wire.frames(self._received):
                return answer
            data = self._socket.recv(1 << 16)
            if not data:
                raise wire.Garbage("it has closed the connection")
            self._received += data


def _connected(host: str, address: Address, timeout: float) -> socket.socket:
    """A connection to a server that has proved to know the token, as this side has.

    Raises:
        OSError: nobody answers there.
        wire.Garbage: somebody else does.
    """
    connection = socket.create_connection((host, address.port), timeout=timeout)
    try:
        wire.notice_silence(connection, address.silence)
        greeting = _receive(connection, wire.GREETING_BYTES)
        if not greeting.startswith(wire.HELLO):
            raise wire.Garbage("something else than a cpudist job answers")
        theirs, ours = greeting[len(wire.HELLO) :], secrets.token_bytes(wire.NONCE_BYTES)
        connection.sendall(ours + wire.proof(address.token, b"client", theirs, ours))
        if not wire.same(_receive(connection, wire.PROOF_BYTES), wire.proof(address.token, b"server", ours, theirs)):
            raise wire.Garbage("another job than this one answers")
        return connection
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise wire.Garbage("another job, or something else than a cpudist job, answers")
        data += part
    return data
