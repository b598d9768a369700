"""Many ranks against one store, without torch in each: what starting, watching and reporting cost, as ranks grow.

    python benchmarks/store_scale.py [64 256 1024 4096]

The ranks are connections of this process, which asks for all of them and then reads all answers. So it competes with
the store's process for the machine's cores: on a cluster every rank has its own.
"""

import json
import random
import secrets
import sys
import time
import uuid
import zlib
from collections.abc import Iterable
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import psutil
from usage import asked

from cpudist.backends.interface import Call
from cpudist.launchers import Placement
from cpudist.processes.lost_ranks import LostRank
from cpudist.store import protocol
from cpudist.store.client import Address, Connection
from cpudist.store.process import StoreProcess
from cpudist.store.protocol import Code
from cpudist.supervision.rank_status import RankStatus
from cpudist.world import RankInfo

_RANKS_PER_NODE = 16


def member(rank: int) -> bytes:
    """What a rank publishes when the job starts: nodes differ in their identities, ranks in CPUs and numbers."""
    node, local = divmod(rank, _RANKS_PER_NODE)
    numbers = random.Random(node)
    boot = uuid.UUID(int=numbers.getrandbits(128))
    identity = f"node{node:04}/{boot}/{numbers.getrandbits(32)}/{numbers.getrandbits(8)}"
    cpus = tuple(range(8 * local, 8 * local + 8))
    placement = Placement(rank, max(rank + 1, _RANKS_PER_NODE), local, _RANKS_PER_NODE)
    return RankInfo(identity, f"node{node:04}", placement, cpus, 8).to_json().encode()


def status(rank: int) -> bytes:
    """What a rank publishes in each heartbeat: everyone in a call and a line of its own."""
    calls = tuple(
        Call("all_reduce", sequence=random.getrandbits(20), bytes=random.getrandbits(27), seconds=random.random())
        for _ in range(2)
    )
    host, line = f"node{rank // _RANKS_PER_NODE:04}", f"train.py:{random.randrange(1000)}"
    return RankStatus(rank, host, line, calls, calls[:1]).to_json().encode()


def report(rank: int) -> bytes:
    """What the store prints if the rank is lost and no other rank is left."""
    loss = LostRank("ended", rank, f"node{rank // _RANKS_PER_NODE:04}", f"last in train.py:{random.randrange(1000)}")
    return f"{loss}; the job is over".encode()


class Rank(Connection):
    """A client that asks now and reads the answer later."""

    def ask(self, code: Code, *fields: bytes) -> None:
        self._socket.sendall(protocol.pack(code, *fields))

    def answer(self) -> list[bytes]:
        while True:
            for _code, fields in protocol.frames(self._received):
                return fields
            self._received += self._socket.recv(1 << 20)


def all_ask(ranks: Iterable[Rank], code: Code, *fields: bytes) -> None:
    """One request of every rank at once, and all answers."""
    ranks = list(ranks)
    for rank in ranks:
        rank.ask(code, *fields)
    for rank in ranks:
        rank.answer()


def all_gather(ranks: list[Rank], key: str) -> None:
    """As `cpudist.rendezvous.all_gather`, of all ranks."""
    for number, rank in enumerate(ranks):
        rank.ask(Code.SET, f"/{key}/{number}".encode(), member(number))
    for rank in ranks:
        rank.answer()
    everyone = f"/{key}/all".encode()
    for rank in ranks[1:]:
        rank.ask(Code.WAIT_ALL, protocol.number(300_000), everyone)
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
    server = StoreProcess(["127.0.0.1"], 0, token, keepalive_timeout=30)
    process = psutil.Process(server._process.pid)
    place = Address(("127.0.0.1",), server.port, token, 30)
    try:
        start = time.perf_counter()
        ranks = [Rank(place, 60) for _ in range(size)]
        connected = time.perf_counter()
        all_gather(ranks, "member")
        exchanged = time.perf_counter()
        busy, rounds = sum(process.cpu_times()[:2]), 3
        for _ in range(rounds):  # the requests of one beat of a watch
            for number, rank in enumerate(ranks):
                rank.ask(Code.SET, f"/status/{number}".encode(), status(number))
            for rank in ranks:
                rank.answer()
            for number, rank in enumerate(ranks):
                rank.ask(Code.REPORT_ON_DISCONNECT, b"/lost", str(number).encode(), b"/failure/claims", report(number))
            for rank in ranks:
                rank.answer()
            all_ask(ranks, Code.WAIT_ANY, protocol.number(0), b"/failure/reported", b"/lost")
            all_ask(ranks, Code.CHECK, b"/finished/0")
        beat = (sum(process.cpu_times()[:2]) - busy) / rounds
        begun = time.perf_counter()
        keys = [f"status/{number}" for number in range(size)]
        ranks[0].ages(keys)
        assert len(ranks[0].get(keys) or []) == size
        reported = time.perf_counter() - begun
        told = time.perf_counter()
        for rank in ranks[1:]:
            rank.ask(Code.WAIT_ANY, protocol.number(60_000), b"/lost")
        ranks[0].append("lost", b"0 ended\n")
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
    asked(__doc__)
    main()
