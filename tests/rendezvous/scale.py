"""Many ranks against one store, without torch in each: what starting, watching and reporting cost, as ranks grow.

    python tests/rendezvous/scale.py [64 256 1024 4096]

The ranks are connections of this process, which asks for all of them and then reads all answers. So it competes with
the store's process for the machine's cores: on a cluster every rank has its own.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import zlib
from collections.abc import Iterable
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import psutil

from cpudist.rendezvous import wire
from cpudist.rendezvous.connection import Address, Connection
from cpudist.rendezvous.process import StoreProcess
from cpudist.rendezvous.wire import Code

# What a rank tells of itself when the job starts (cpudist/world.py), and where it is (cpudist/job/whereabouts.py).
MEMBER = json.dumps(
    {"node": "n" * 90, "host": "node0123", "placement": {"rank": 1}, "cpus": [*range(16)], "threads": 16}
)
HERE = json.dumps({"rank": 1, "host": "node0123", "line": "train.py:88", "under_way": [{"name": "all_reduce"}] * 2})
WORDS = "rank 1 on node0123 ended without a word (killed, out of memory, or crashed?); it was last in train.py:88"


class Rank(Connection):
    """A client that asks now and reads the answer later."""

    def ask(self, code: Code, *fields: bytes) -> None:
        self._socket.sendall(wire.pack(code, *fields))

    def answer(self) -> list[bytes]:
        while True:
            for _code, fields in wire.frames(self._received):
                return fields
            self._received += self._socket.recv(1 << 20)


def all_ask(ranks: Iterable[Rank], code: Code, *fields: bytes) -> None:
    """One request of every rank at once, and all answers."""
    ranks = list(ranks)
    for rank in ranks:
        rank.ask(code, *fields)
    for rank in ranks:
        rank.answer()


def exchange(ranks: list[Rank], key: str) -> None:
    """As `cpudist.rendezvous.exchange`, of all ranks."""
    for number, rank in enumerate(ranks):
        rank.ask(Code.SET, f"/{key}/{number}".encode(), MEMBER.encode())
    for rank in ranks:
        rank.answer()
    everyone = f"/{key}/all".encode()
    for rank in ranks[1:]:
        rank.ask(Code.WAIT_ALL, wire.number(300_000), everyone)
    keys = [f"{key}/{number}" for number in range(len(ranks))]
    assert ranks[0].wait_all(keys, 300)
    values = ranks[0].get(keys) or []
    text = json.dumps([[], [value.decode() for value in values]])
    ranks[0].set({f"{key}/all": zlib.compress(text.encode(), level=1)})
    for rank in ranks[1:]:
        rank.answer()
        rank.ask(Code.GET, everyone)
        assert rank.answer()


def measure(size: int) -> str:
    """One line of the table."""
    token = secrets.token_bytes(32)
    server = StoreProcess(["127.0.0.1"], 0, token, silence=30)
    process = psutil.Process(server._process.pid)
    place = Address(("127.0.0.1",), server.port, token, 30)
    try:
        start = time.perf_counter()
        ranks = [Rank(place, 60) for _ in range(size)]
        connected = time.perf_counter()
        exchange(ranks, "member")
        exchanged = time.perf_counter()
        busy, rounds = sum(process.cpu_times()[:2]), 3
        for _ in range(rounds):  # the requests of one beat of a watch
            for number, rank in enumerate(ranks):
                rank.ask(Code.SET, f"/here/{number}".encode(), HERE.encode())
            for rank in ranks:
                rank.answer()
            for number, rank in enumerate(ranks):
                rank.ask(Code.LAST_WORDS, b"/lost", str(number).encode(), b"/failure/claims", WORDS.encode())
            for rank in ranks:
                rank.answer()
            all_ask(ranks, Code.WAIT_ANY, wire.number(0), b"/failure/reported", b"/lost")
            all_ask(ranks, Code.CHECK, b"/finished/0")
        beat = (sum(process.cpu_times()[:2]) - busy) / rounds
        begun = time.perf_counter()
        keys = [f"here/{number}" for number in range(size)]
        ranks[0].ages(keys)
        assert len(ranks[0].get(keys) or []) == size
        reported = time.perf_counter() - begun
        told = time.perf_counter()
        for rank in ranks[1:]:
            rank.ask(Code.WAIT_ANY, wire.number(60_000), b"/lost")
        ranks[0].append("lost", b"0 closed\n")
        for rank in ranks[1:]:
            rank.answer()
        told = time.perf_counter() - told
        memory = process.memory_info().rss / 1e6
        for rank in ranks:
            rank.close()
    finally:
        server.close()
    share = beat / max(1.0, size / 500)
    return (
        f"| {size} | {connected - start:.2f} s | {exchanged - connected:.2f} s | {1e3 * beat:.0f} ms | {share:.1%} "
        f"| {1e3 * reported:.0f} ms | {told:.2f} s | {memory:.0f} MB |"
    )


def main() -> None:
    most = getrlimit(RLIMIT_NOFILE)[1]
    setrlimit(RLIMIT_NOFILE, (most, most))
    print(
        "| ranks | connecting | one exchange | store's CPU for a beat | of a core | stall report | all told | memory |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for size in [int(word) for word in sys.argv[1:]] or [64, 256, 1024, 4096]:
        print(measure(size), flush=True)


if __name__ == "__main__":
    main()
