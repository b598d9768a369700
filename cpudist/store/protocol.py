"""The protocol between the job's store and its clients: a handshake, then frames.

The handshake proves to each side that the other one has the job's token, without sending the token (HMAC-SHA256 over a
challenge from each side, RFC 2104). It authenticates; it does not encrypt.

    server  HELLO nonce_s                       16 bytes of randomness
    client  nonce_c HMAC("client" nonce_s nonce_c)
    server  HMAC("server" nonce_c nonce_s)
    then    frames, each a code, a length, and fields that have lengths of their own
"""

import hmac
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum

HELLO = b"cpudist1"
NONCE_BYTES, PROOF_BYTES = 16, 32
GREETING_BYTES = len(HELLO) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + PROOF_BYTES

_HEAD = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">q")
_MOST_BYTES = 1 << 30  # Longest frame, in bytes.
_TCP_INFO_RECEIVED = struct.Struct("=52xII")  # tcpi_last_data_recv and tcpi_last_ack_recv of linux/tcp.h
_TCP_RTO_MAX_MS = 44  # of linux/tcp.h; Python's socket has no name for it


class Code(IntEnum):
    """The code of a request; its answer repeats the code."""

    SET = 1  # key value, key value, …
    GET = 2  # keys -> values; the answer is MISSING if a key is missing
    ADD = 3  # key number -> the sum
    APPEND = 4  # key value
    COMPARE_SET = 5  # key expected desired -> the key's value afterwards
    DELETE = 6  # key -> 1 if it was there, otherwise 0
    COUNT = 7  # -> the number of keys
    CHECK = 8  # keys -> 1 if all are there, otherwise 0
    WAIT_ALL = 9  # milliseconds keys -> 1 as soon as all are there, 0 when the time is over
    WAIT_ANY = 10  # milliseconds keys -> 1 as soon as one is there, 0 when the time is over
    ON_DISCONNECT = 11  # key value: append the value and "ended" or "unreachable" when this connection breaks
    CANCEL_ON_DISCONNECT = 12  # key value: cancel ON_DISCONNECT with these fields on all connections
    AGES = 13  # keys -> milliseconds since each was last set, -1 for a missing key
    MISSING = 14
    # key value unless text: print the text if ON_DISCONNECT takes effect and the key `unless` stays missing
    REPORT_ON_DISCONNECT = 15
    CLOCK = 16  # -> nanoseconds since the epoch by the server's wall clock
    # key -> the value of each ON_DISCONNECT with this key, and the milliseconds since its client's kernel last answered
    SILENCES = 17


class Garbage(Exception):
    """Raised for bytes that this protocol does not allow, such as a wrong proof."""


def pack(code: Code, *fields: bytes) -> bytes:
    """Return one frame."""
    body = b"".join(_LENGTH.pack(len(field)) + field for field in fields)
    return _HEAD.pack(code, len(body)) + body


def number(value: int) -> bytes:
    return _NUMBER.pack(value)


def to_number(field: bytes) -> int:
    """Return the number that a field holds, or raise Garbage."""
    try:
        return int(_NUMBER.unpack(field)[0])
    except struct.error:
        raise Garbage(f"a number of {len(field)} bytes") from None


def frames(buffer: bytearray) -> Iterator[tuple[Code, list[bytes]]]:
    """Remove complete frames from the front of `buffer`, and yield them, or raise Garbage."""
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
    """Return the HMAC that proves possession of the token, over the nonces; `who` is b"client" or b"server"."""
    return hmac.digest(token, who + b"".join(nonces), "sha256")


def enable_keepalive(connection: socket.socket, seconds: float) -> None:
    """Make the kernel break a connection if its other end does not answer for about `seconds`, at least 3.

    The other end's kernel answers even if its process is busy or stopped. It does not answer if the host or the link is
    down. See tcp(7): keep-alive probes on an idle connection, TCP_USER_TIMEOUT while data is under way.

    A shorter outage must not break the connection. The kernel counts from the last answer, so about ten probes are sent
    in this time. It doubles the pauses between retransmissions, unless TCP_RTO_MAX_MS (from Linux 6.15 on) limits them.
    """
    probes = 9
    pause = max(1, round(seconds / (probes + 1)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * max(3.0, seconds)))
    with suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, 1000 * pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def silence(connection: socket.socket) -> int:
    """Return the milliseconds since the other end's kernel last sent data or an answer to a keep-alive probe."""
    received = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RECEIVED.size)
    return min(map(int, _TCP_INFO_RECEIVED.unpack(received)))
