"""The command's side: finds the ranks of this user on this machine and asks all of them at once."""

from __future__ import annotations

import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpudist.stacks.address import SIGNAL, Address
from cpudist.stacks.answer import read_all

_ANSWER_SECONDS = 2.0  # for the rank's thread, which needs Python's interpreter lock
_SIGNAL_SECONDS = 2.0  # for the signal's handler, which does not
_AT_ONCE = 32


def ask_all() -> list[tuple[Address, str]]:
    """Where every rank on this machine that this user may ask is, in text, by job and rank; within seconds."""
    addresses = sorted({address for line in _sockets() if (address := Address.of(line)) is not None})
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = pool.map(_ask, addresses)
    return [(address, answer) for address, answer in zip(addresses, answers, strict=True) if answer]


def _sockets() -> list[str]:
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    return [fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8]


def _ask(address: Address) -> str:
    """What a rank says, or what is known of one that says nothing; empty where there is none, or another user's."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(address.socket_name())
        except OSError:
            return ""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, _, _ = struct.unpack("3i", credentials)  # of the process that listens, as it is numbered here
        parts = []
        try:
            while part := connection.recv(1 << 16):
                parts.append(part)
            return b"".join(parts).decode(errors="replace")
        except OSError:
            return _without_its_thread(address, pid)


def _without_its_thread(address: Address, pid: int) -> str:
    who = f"rank {address.rank} (process {pid})"
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if status["State"][0] in "tT":
            return f"{who} is stopped; kill -CONT {pid} lets it go on\n"
        if not int(status["SigCgt"], 16) >> (SIGNAL - 1) & 1:  # it would end the process
            return f"{who} does not answer\n"
        pipe = os.open(f"/proc/{pid}/fd/{address.pipe}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            read_all(pipe, wait=0)  # what an earlier signal has left there
            os.kill(pid, SIGNAL)
            text = read_all(pipe, wait=_SIGNAL_SECONDS).decode(errors="replace")
        finally:
            os.close(pipe)
    except (OSError, KeyError, ValueError) as error:
        return f"{who} does not answer: {error}\n"
    if not text:
        return f"{who} does not answer, nor take a signal; its state is {status['State']}\n"
    return f"{who} runs no Python just now; its stacks, the innermost line first:\n{text}"
