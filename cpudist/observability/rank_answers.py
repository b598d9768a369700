"""Ask all ranks of this user on this machine for their status and stacks; ranks that cannot answer get a signal.

The module must not import torch: `cpudist stacks` and `cpudist top` import it, and run it on other hosts.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from cpudist import typed_json
from cpudist.observability.stack_server import MOST_BYTES, SIGNAL, StackAddress, peer, read_pipe

_ANSWER_SECONDS = 2.0  # Longest wait for a rank's thread, which needs Python's interpreter lock.
_SIGNAL_SECONDS = 2.0  # Longest wait for the signal's handler, which does not need that lock.
_AT_ONCE = 32  # At most so many ranks are asked in parallel.

_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]  # arithmetic with floats fails on larger integers


class Figures(TypedDict, total=False):
    """The figures of a rank that are read; a rank of another version may send others."""

    host: str | None
    checkpoint: str | None
    steps: _Count | None
    bytes: _Count | None
    memory: _Count | None
    threads: _Count | None
    restarts: _Count | None
    waited: float | None
    loading: float | None
    processor: float | None
    at: float
    losses: list[float]
    samples: _Count | None
    tokens_per_second: float | None
    tokens_per_second_per_core: float | None
    product_share: float | None


@dataclass(frozen=True, order=True)
class RankStacks:
    """The answer of a rank."""

    address: StackAddress  # its address
    user: int  # the user of its process
    text: str  # its status in the first line, then its stacks
    # Its figures; empty if its thread does not answer, or if its version of cpudist sends them in another form.
    figures: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def list_of(cls, listed: Any) -> list[RankStacks]:
        """Read the JSON that `main` has printed, or raise ValueError if `listed` is something else."""
        ranks = typed_json.read(list[RankStacks], listed)
        return [replace(one, figures=_known(one.figures)) for one in ranks]


def ask_ranks(processes: Collection[int] | None = None, job: str | None = None) -> list[RankStacks]:
    """Return the answer of every rank on this machine that this user may ask.

    Any user may name a socket like a rank's, so only root asks other users' processes.

    Args:
        processes: ask only the ranks with these process ids, and leave out ranks whose threads do not answer. None: ask
            all, and send a signal if a thread does not answer; that rank may also write its stacks to its own output.
        job: ask only the ranks of this job; see `StackAddress`.
    """
    found = filter(None, map(StackAddress.of, _sockets()))
    addresses = {address for address in found if job in (None, address.job)}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answered = pool.map(lambda address: _ask(address, processes), addresses)
    return [
        RankStacks(address, user, *_parts(text))
        for address, (user, text) in zip(addresses, answered, strict=True)
        if text
    ]


def main() -> None:
    """Print the answers of this machine's ranks as JSON, for `cpudist stacks` and `cpudist top` on another host."""
    print(json.dumps([asdict(one) for one in ask_ranks()]))


def _parts(answer: str) -> tuple[str, Mapping[str, Any]]:
    """Return the text of a rank's answer, and the figures from its first line; answers to a signal have no figures."""
    first, _, text = answer.partition("\n")
    if first.startswith("{"):
        with suppress(ValueError):  # a process that is no rank may use a rank's name
            return _printable(text), _known(typed_json.last_line(first))
    return _printable(answer), {}


def _known(figures: Any) -> Mapping[str, Any]:
    """Return a rank's figures; none if the rank's version of cpudist sends them in another form."""
    try:
        return typed_json.read(Figures, figures)
    except ValueError:
        return {}


def _printable(text: str) -> str:
    """Return `text` without characters that could control a terminal."""
    return "".join(letter if letter in "\n\t" or letter.isprintable() else "�" for letter in text)


def _sockets() -> list[str]:
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
    return [fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8]


def _ask(address: StackAddress, processes: Collection[int] | None) -> tuple[int, str]:
    """Return a rank's user and its answer; no text if it has ended or may not be asked."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(address.socket_name())
        except OSError:
            return 0, ""
        pid, user = peer(connection)
        if os.getuid() not in (0, user) or (processes is not None and pid not in processes):
            return user, ""
        text = b""
        try:
            while len(text) < MOST_BYTES and (part := connection.recv(1 << 16)):
                text += part
            return user, text.decode(errors="replace")
        except OSError:
            return user, _without_its_thread(address, pid) if processes is None else ""


def _without_its_thread(address: StackAddress, pid: int) -> str:
    """Request a rank's stacks by the signal, since its thread does not answer; return its state if there are none."""
    name = f"rank {address.rank} (process {pid})"
    try:
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        if status["State"][0] in "tT":
            return f"{name} is stopped; kill -CONT {pid} lets it go on\n"
        if not int(status["SigCgt"], 16) >> (SIGNAL - 1) & 1:  # without a handler the signal would end the process
            return f"{name} does not answer\n"
        pipe = os.open(f"/proc/{pid}/fd/{address.pipe}", os.O_RDONLY | os.O_NONBLOCK)
        try:
            read_pipe(pipe, wait=0)  # discard the output of an earlier signal
            os.kill(pid, SIGNAL)
            text = read_pipe(pipe, wait=_SIGNAL_SECONDS).decode(errors="replace")
        finally:
            os.close(pipe)
    except (OSError, KeyError, ValueError) as error:
        return f"{name} does not answer: {error}\n"
    if not text:
        return f"{name} answers neither a request nor a signal; its state is {status['State']}\n"
    return f"{name} runs no Python code now\n  its stacks, the innermost line first:\n{text}"
