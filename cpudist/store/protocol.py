"""The protocol between the job's store and its clients: a handshake, then frames.

The handshake proves to each side that the other one has the job's token, without sending the token (HMAC-SHA256 over a
challenge from each side, RFC 2104). It authenticates; it does not encrypt.

    server  HELLO nonce_s                       16 bytes of randomness
    client  nonce_c HMAC("client" nonce_s nonce_c)
    server  HMAC("server" nonce_c nonce_s)
    then    frames, each a code, a length, and fields that have lengths of their own
"""

from __future__ import annotations

import hmac
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum

HELLO = b"cpudist1"
NONCE_BYTES, PROOF_BYTES = 16, 32
GREETING_BYTES = len(HELLO) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES

_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_MOST_BYTES = 1 << 30  # of a frame


class Code(IntEnum):
    """The code of a request; its answer repeats the code."""

    SET = 1  # key value, key value, …
    GET = 2  # keys -> values; a key that is missing: the answer MISSING
    ADD = 3  # key number -> the sum
    APPEND = 4  # key value
    COMPARE_SET = 5  # key expected desired -> the key's value afterwards
    DELETE = 6  # key -> 1 if it was there, otherwise 0
    COUNT = 7  # -> how many keys there are
    CHECK = 8  # keys -> 1 if all are there, otherwise 0
    WAIT_ALL = 9  # milliseconds keys -> 1 as soon as all are there, 0 when the time is over
    WAIT_ANY = 10  # milliseconds keys -> the same, for one of them
    ON_DISCONNECT = 11  # key value: append the value, and how it happened, when this connection breaks
    CANCEL_ON_DISCONNECT = 12  # key value: cancel that ON_DISCONNECT, whichever connection asked for it
    AGES = 13  # keys -> for each the milliseconds since it was set last, -1 where it is missing
    MISSING = 14
    # key value unless text: after that ON_DISCONNECT, print the text if `unless` stays missing
    REPORT_ON_DISCONNECT = 15
    CLOCK = 16  # -> nanoseconds since the epoch by the server's wall clock


class Garbage(Exception):
    """Raised for bytes that are no frame."""


def pack(code: Code, *fields: bytes) -> bytes:
    """Return one frame."""
    body = b"".join(_LENGTH.pack(len(field)) + field for field in fields)
    return _HEAD.pack(code, len(body)) + body


def number(value: int) -> bytes:
    return _NUMBER.pack(value)


def to_number(field: bytes) -> int:
    """Return the number that a field holds.

    Raises:
        Garbage: the field holds none.
    """
    try:
        return int(_NUMBER.unpack(field)[0])
    except struct.error:
        raise Garbage(f"a number of {len(field)} bytes") from None


def frames(buffer: bytearray) -> Iterator[tuple[Code, list[bytes]]]:
    """Take the whole frames off the front of `buffer`.

    Raises:
        Garbage: there are other bytes.
    """
    while len(buffer) >= _HEAD.size:
        code, size = _HEAD.unpack_from(buffer)
        if code not in Code.__members__.values() or size > _MOST_BYTES:
            raise Garbage(f"code {code}, {size} bytes")
        if len(buffer) < _HEAD.size + size:
            return
        body = bytes(buffer[_HEAD.size : _HEAD.size + size])
        del buffer[: _HEAD.size + size]
        yield Code(code), list(_fields(body))


def _fields(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise Garbage("half a field")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + length
        if at > len(body):
            raise Garbage("a field that is longer than its frame")
        yield body[at - length : at]


def proof(token: bytes, who: bytes, *nonces: bytes) -> bytes:
    """Return the proof that a side has the token, for these challenges; `who` is b"client" or b"server"."""
    return hmac.digest(token, who + b"".join(nonces), "sha256")


def enable_keepalive(connection: socket.socket, seconds: float) -> None:
    """Break a connection once its other end has been silent for about `seconds`, at least 3.

    The kernel at the other end answers also for a process that is busy or stopped; a dead host or a link that is
    down does not. See tcp(7): keep-alive probes on an idle connection, TCP_USER_TIMEOUT while data is under way.
    """
    probes = 3
    pause = max(1, round(seconds / (probes + 1)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * max(3.0, seconds)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
