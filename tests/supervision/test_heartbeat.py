"""The heartbeat outlives the functions that it calls, and the store."""

import pytest

from cpudist.store import Address, Connection
from cpudist.store.process import StoreProcess
from cpudist.supervision.heartbeat import Heartbeat
from cpudist.waiting import poll


def test_a_function_that_raises_is_reported_once_and_the_others_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    calls = {"raises": 0, "works": 0}

    def raises(store: Connection | None) -> None:
        calls["raises"] += 1
        raise ValueError("no")

    def works(store: Connection | None) -> None:
        calls["works"] += 1

    heartbeat = Heartbeat(1, None, 1)
    heartbeat.add(raises)
    heartbeat.add(works)
    assert poll(lambda: calls["works"] > 2, 20)
    heartbeat.stop()
    assert calls["raises"] > 2
    (warning,) = capsys.readouterr().err.splitlines()
    assert ".raises has failed" in warning
    assert "ValueError('no')" in warning


@pytest.mark.job
def test_without_the_store_functions_get_none() -> None:
    server = StoreProcess(["127.0.0.1"], 0, b"token", keepalive_timeout=5)
    stores: list[Connection | None] = []
    heartbeat = Heartbeat(2, Address(("127.0.0.1",), server.port, b"token", keepalive_timeout=5), 5)
    heartbeat.listen(["never"], lambda store: None)
    heartbeat.add(stores.append)
    assert poll(lambda: bool(stores), 20)
    server._process.kill()
    assert poll(lambda: stores[-1] is None, 20)
    heartbeat.stop()
    server.close()
