"""The heartbeat outlives its functions and the store; watches of one process, on one store, wait for each other."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cpudist.processes.lost_ranks import SilentHosts
from cpudist.store import Address, Connection
from cpudist.store.process import StoreProcess
from cpudist.store.protocol import Code
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.supervision.rank_status import RankStatus, published
from cpudist.supervision.watch import RanksMissing, Watch
from cpudist.waiting import poll
from cpudist.world import World

pytestmark = pytest.mark.job


@pytest.fixture
def server() -> Iterator[StoreProcess]:
    server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
    yield server
    server.close()


def address(server: StoreProcess) -> Address:
    return Address(("127.0.0.1",), server.port, b"token", keepalive_timeout=5)


def watch(server: StoreProcess, rank: int, timeout: float) -> Watch:
    world, heartbeat = World(rank, 2, rank, 2, 0, 1, "test", hosts=("h0",)), Heartbeat(2, address(server), 5)
    status = RankStatus(rank, "h0", "train.py:9")
    own = partial(replace, status)
    return Watch(world, ["h0", "h0"], address(server), own, heartbeat, lambda: timeout)


def test_a_function_that_raises_disturbs_no_others(server: StoreProcess, capsys: pytest.CaptureFixture[str]) -> None:
    raised, stores = list[None](), list[Connection | None]()

    def raises(store: Connection | None) -> None:
        raised.append(None)
        raise ValueError("no")

    heartbeat = Heartbeat(2, address(server), 5)
    heartbeat.listen(["never"], lambda store: None)
    heartbeat.add(raises)
    heartbeat.add(stores.append)
    assert poll(lambda: len(stores) > 2, 20)
    assert heartbeat._thread.daemon, "a script that leaves without an end of the job must not wait for it"
    assert None not in stores
    server._process.kill()
    assert poll(lambda: stores[-1] is None, 20)
    heartbeat.stop()
    assert len(raised) > 2
    (warning,) = capsys.readouterr().err.splitlines()
    assert ".raises has failed" in warning
    assert "ValueError('no')" in warning


def test_ranks_finish_together_and_the_store_ends_with_them(server: StoreProcess) -> None:
    watches = [watch(server, rank, 20) for rank in range(2)]
    with ThreadPoolExecutor() as pool:
        for finished in [pool.submit(one.finish) for one in watches]:
            finished.result(20)
    for one in watches:
        one.close()
    server.close()
    assert server._process.poll() == 0, "it does not wait for connections that the ranks have left open"


def test_no_heartbeat_replaces_the_status_at_the_end(server: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one alone has the pace of the whole training, for the record and the job's last line."""
    reading, go_on = threading.Event(), threading.Event()
    host, other = watch(server, 0, 20), watch(server, 1, 2)

    def slow(at_end: bool) -> RankStatus:
        if threading.current_thread() is other._heartbeat._thread:
            reading.set()
            go_on.wait(20)
        return RankStatus(1, "h0", "train.py:9", at_end=at_end)

    def at_end() -> bool:
        return any(status.at_end for status in published(host._store, 2).values())

    monkeypatch.setattr(other, "_own_status", slow)
    assert reading.wait(20)
    with ThreadPoolExecutor() as pool:
        end = pool.submit(other.finish)
        assert not poll(at_end, 0.5), "it waits for the heartbeat"
        go_on.set()
        assert poll(at_end, 20)
        monkeypatch.setattr(other, "stop", lambda stop=other.stop: (time.sleep(0.5), stop()))
        host.finish()
        assert host._store.check(["left/1"]), "the rank that serves the store leaves last"
        end.result(20)
    assert published(host._store, 2)[1].at_end
    for one in (host, other):
        one.close()


def test_at_the_end_a_rank_waits_for_ten_timeouts(server: StoreProcess, capsys: pytest.CaptureFixture[str]) -> None:
    host, other = watch(server, 0, 20), watch(server, 1, 0.1)
    assert poll(lambda: other._store.check(["status/0"]), 20)
    waiting = r"after 1 s at the end still waiting for rank 0 \(h0\), last in train\.py:9"
    with pytest.raises(RanksMissing, match=waiting):
        other.finish()
    assert capsys.readouterr().err.count("at the end still waiting for rank 0") == 9, "once in every timeout before"
    for one in (host, other):
        one.close()


def test_hosts_that_do_not_answer_are_named_once_until_they_answer_or_are_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hosts, answering = SilentHosts(30), {"h0": 0.0, "h1": 3.0, "h2": 0.0}
    both, one, lost = {"h0": 0.1, "h1": 10.4, "h2": 12.0}, {"h0": 0.1, "h1": 12.0, "h2": 0.1}, {"h0": 0.1, "h2": 3.0}
    for silences in (answering, both, both, one, one, lost):
        hosts.report(silences)
    assert capsys.readouterr().err.splitlines() == [
        "cpudist: warning: h1, h2 do not answer for 10 s; the job ends at 30 s",
        "cpudist: h2 answers again",
    ]


def test_a_beat_asks_the_store_four_things(server: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each beat, as docs/scale.md says, and benchmarks/store_scale.py measures. Rank 0 asks one more."""
    asked: list[Code] = []
    ask = Connection._ask

    def count(self: Connection, code: Code, *fields: bytes, **within: Any) -> Any:
        if self is one._heartbeat._store:
            asked.append(code)
        return ask(self, code, *fields, **within)

    one = watch(server, 1, 20)
    monkeypatch.setattr(Connection, "_ask", count)
    assert poll(lambda: asked.count(Code.CHECK) == 4, 20)
    one.close()
    assert one.claim(), "a rank without a store, which cannot agree with the others, reports its failure"
    first = asked.index(Code.CHECK)
    assert asked[first : first + 12] == 3 * [Code.CHECK, Code.SET, Code.REPORT_ON_DISCONNECT, Code.WAIT_ANY]
