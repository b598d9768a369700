"""A client's connection with the job's store. It sends one request at a time, each with a time limit."""

import hmac
import math
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cpudist.console import first_line
from cpudist.errors import StartupTimeout
from cpudist.processes.lost_ranks import silence_seconds
from cpudist.store import protocol
from cpudist.store.protocol import Code
from cpudist.waiting import poll, usable

LONGEST_KEEPALIVE = 30.0
_ATTEMPT_SECONDS, _SHORTEST_ATTEMPT_SECONDS = 5.0, 0.1  # Longest and shortest timeout for one address.
_ANSWER_SECONDS = LONGEST_KEEPALIVE  # Timeout of a request that does not wait for keys.


class StoreLost(RuntimeError):
    """The job's store no longer answers."""


@dataclass(frozen=True)
class Address:
    """Address of the job's store, and the token that authenticates the job's clients."""

    hosts: tuple[str, ...]  # addresses of the store's host; some may not be reachable from here
    port: int  # the store's port, the same at all addresses
    token: bytes = field(repr=False)  # the job's secret; empty if the launcher has no private way to distribute one
    keepalive_timeout: float  # seconds after which a connection breaks when the network is down
    job: str = ""  # key namespace of this job; a server outlives jobs
    # Seconds for which connecting is tried while no name in `hosts` can be resolved.
    name_seconds: float = math.inf


def keepalive_timeout(timeout: float) -> float:
    """Return the seconds after which a rank without network counts as lost: half the timeout, from 5 to 30 seconds."""
    return min(LONGEST_KEEPALIVE, usable(timeout / 2, 5.0))


class Connection:
    """Client of the store, for one thread at a time.

    Every method raises `StoreLost` when the store does not answer: its process has ended, or the network is down.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        """Connect and authenticate within `timeout` seconds, in at least one attempt, or raise StartupTimeout."""
        self._received = bytearray()
        self._silent_seconds = silence_seconds(address.keepalive_timeout)
        # Called when an answer takes a third of the time after which the store is lost.
        self.on_silence: Callable[[], object] | None = None
        self._job = address.job
        attempt = min(_ATTEMPT_SECONDS, usable(timeout, _SHORTEST_ATTEMPT_SECONDS))
        names_until = time.monotonic() + address.name_seconds
        errors: list[Exception] = []
        from_others: list[Exception] = []  # answers of other programs and jobs, in any attempt

        def ended() -> bool:
            nonlocal errors
            errors = self._connect(address, attempt)
            from_others.extend(error for error in errors if isinstance(error, protocol.Garbage))
            return not errors or (_are_of_names(errors) and time.monotonic() > names_until)

        poll(ended, timeout)
        if errors:
            raise StartupTimeout(_unreachable(address, from_others or errors))

    def _connect(self, address: Address, timeout: float) -> list[Exception]:
        """Try each host once; return the errors of all, or an empty list as soon as one is connected."""
        errors: list[Exception] = []
        for host in address.hosts:
            try:
                self._socket, self.host = _connected(host, address, timeout), host
                return []
            except (OSError, UnicodeError, protocol.Garbage) as error:  # UnicodeError: the host name is invalid
                errors.append(error)
        return errors

    def set(self, values: dict[str, bytes]) -> None:
        self._ask(Code.SET, *(part for key, value in values.items() for part in (self._name(key), value)))

    def get(self, keys: list[str]) -> list[bytes] | None:
        """Return the values of all keys; None if one of them is missing."""
        code, values = self._ask(Code.GET, *map(self._name, keys))
        return None if code == Code.MISSING else values

    def ages(self, keys: list[str]) -> list[float | None]:
        """Return for each key the seconds since it was last set; None if it is missing."""
        _, fields = self._ask(Code.AGES, *map(self._name, keys))
        return [None if age < 0 else age / 1000 for age in map(protocol.to_number, fields)]

    def clock(self) -> int:
        """Return the time by the server's wall clock, in nanoseconds since the epoch."""
        return self._number(Code.CLOCK)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which is 0 at first, and return the sum."""
        return self._number(Code.ADD, self._name(key), protocol.number(amount))

    def append(self, key: str, value: bytes) -> None:
        self._ask(Code.APPEND, self._name(key), value)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set the key if its value is `expected` (a missing key counts as empty); return its value afterwards."""
        return self._ask(Code.COMPARE_SET, self._name(key), expected, desired)[1][0]

    def delete(self, key: str) -> bool:
        return bool(self._number(Code.DELETE, self._name(key)))

    def count(self) -> int:
        return self._number(Code.COUNT)

    def check(self, keys: list[str]) -> bool:
        return bool(self._number(Code.CHECK, *map(self._name, keys)))

    def wait_all(self, keys: list[str], timeout: float) -> bool:
        """Wait until all keys are there; return False after `timeout` seconds."""
        return self._wait(Code.WAIT_ALL, keys, timeout)

    def wait_any(self, keys: list[str], timeout: float) -> bool:
        """Wait until one of the keys is there; return False after `timeout` seconds."""
        return self._wait(Code.WAIT_ANY, keys, timeout)

    def on_disconnect(self, key: str, value: str) -> None:
        """Make the server append the line "`value` ended" or "… unreachable" to `key` if this connection breaks."""
        self._ask(Code.ON_DISCONNECT, self._name(key), value.encode())

    def report_on_disconnect(self, key: str, value: str, unless: str, text: str) -> None:
        """Make the server print `text` if this `on_disconnect` takes effect and no remaining client sets `unless`."""
        self._ask(Code.REPORT_ON_DISCONNECT, self._name(key), value.encode(), self._name(unless), text.encode())

    def cancel_on_disconnect(self, key: str, value: str) -> None:
        """Cancel the `on_disconnect` of `key` and `value` on all connections."""
        self._ask(Code.CANCEL_ON_DISCONNECT, self._name(key), value.encode())

    def silences(self, key: str) -> dict[str, float]:
        """Map the value of each `on_disconnect` of `key` to the seconds since its client's kernel last answered."""
        _, fields = self._ask(Code.SILENCES, self._name(key))
        pairs = zip(fields[::2], fields[1::2], strict=True)
        return {value.decode(): protocol.to_number(silence) / 1000 for value, silence in pairs}

    def interrupt(self) -> None:
        """Break the connection; `StoreLost` is raised in a thread that waits for an answer."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. In a forked child this leaves the parent's connection open."""
        self._socket.close()

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def _name(self, key: str) -> bytes:
        return f"{self._job}/{key}".encode()

    def _wait(self, code: Code, keys: list[str], timeout: float) -> bool:
        seconds = usable(timeout)
        milliseconds = protocol.number(round(1000 * seconds))
        return bool(self._number(code, milliseconds, *map(self._name, keys), within=seconds + _ANSWER_SECONDS))

    def _number(self, code: Code, *fields: bytes, within: float = _ANSWER_SECONDS) -> int:
        return protocol.to_number(self._ask(code, *fields, within=within)[1][0])

    def _ask(self, code: Code, *fields: bytes, within: float = _ANSWER_SECONDS) -> tuple[Code, list[bytes]]:
        try:
            self._socket.settimeout(within)
            self._socket.sendall(protocol.pack(code, *fields))
            if self.on_silence is not None:
                self._socket.settimeout(self._silent_seconds)
                try:
                    self._socket.recv(1, socket.MSG_PEEK)
                except TimeoutError:
                    self.on_silence()
                self._socket.settimeout(within - self._silent_seconds)
            answer = self._answer()
            if answer[0] not in (code, Code.MISSING):
                raise protocol.Garbage(f"an answer to {answer[0].name} where {code.name} was asked")
            return answer
        except (OSError, protocol.Garbage) as error:
            self.close()
            raise StoreLost(first_line(error)) from None
        except BaseException:  # the next request must not read a late answer to this one
            self.close()
            raise

    def _answer(self) -> tuple[Code, list[bytes]]:
        while True:
            for answer in protocol.frames(self._received):
                return answer
            data = self._socket.recv(1 << 16)
            if not data:
                raise protocol.Garbage("it has closed the connection")
            self._received += data


def _are_of_names(errors: Sequence[Exception]) -> bool:
    return all(isinstance(error, (socket.gaierror, UnicodeError)) for error in errors)


def _unreachable(address: Address, errors: Sequence[Exception]) -> str:
    """Return cause and remedy, given the errors of the hosts."""
    error = errors[-1]
    if isinstance(error, protocol.Garbage):
        remedy = "does another job use this port, or do ranks differ in CPUDIST_TOKEN?"
    elif _are_of_names(errors):
        remedy = "add the name to the name server or to /etc/hosts, or set MASTER_ADDR to an address of rank 0's host"
    else:
        remedy = "open ports 1024 to 65535 between the nodes"
    where = f"from {socket.gethostname()} at port {address.port} of {', '.join(address.hosts)}"
    return f"rank 0 cannot be reached {where} ({getattr(error, 'strerror', None) or first_line(error)}); {remedy}"


def _connected(host: str, address: Address, timeout: float) -> socket.socket:
    """Connect to `host` and authenticate both sides by the token, or raise OSError or Garbage."""
    connection = socket.create_connection((host, address.port), timeout=timeout)
    try:
        protocol.enable_keepalive(connection, address.keepalive_timeout)
        greeting = _receive(connection, protocol.GREETING_BYTES)
        if not greeting.startswith(protocol.HELLO):
            raise protocol.Garbage("a program that is no cpudist job answers")
        theirs, ours = greeting[len(protocol.HELLO) :], secrets.token_bytes(protocol.NONCE_BYTES)
        connection.sendall(ours + protocol.proof(address.token, b"client", theirs, ours))
        if not hmac.compare_digest(
            _receive(connection, protocol.PROOF_BYTES), protocol.proof(address.token, b"server", ours, theirs)
        ):
            raise protocol.Garbage("another job answers")
        return connection
    except BaseException:
        connection.close()
        raise


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise protocol.Garbage("another job, or a program that is no cpudist job, answers")
        data += part
    return data
