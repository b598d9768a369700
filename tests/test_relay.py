"""A relay passes a stream on as it comes, and never waits for processes that keep it open."""

import os
import threading
import time

from cpudist.relay import Relay


def test_all_is_passed_on_and_the_end_is_told() -> None:
    reader, writer = os.pipe()
    pieces: list[bytes] = []
    relay = Relay(open(reader, "rb"), pieces.append)  # noqa: SIM115 - the relay closes it
    with open(writer, "wb") as sink:
        sink.write(b"x" * 300_000)
    relay.finish(20)
    assert b"".join(pieces) == b"x" * 300_000
    assert pieces[-1] == b""


def test_a_slow_reader_gets_all_unless_a_signal_comes() -> None:
    reader, writer = os.pipe()
    may_go_on, stop, pieces = threading.Event(), [False, True], []
    relay = Relay(open(reader, "rb"), lambda piece: (may_go_on.wait(20), pieces.append(piece)))  # noqa: SIM115
    with open(writer, "wb", buffering=0) as sink:
        sink.write(b"x")
        while not relay.writing:
            time.sleep(0.01)
        sink.write(b"y")
        relay.finish(0.05, lambda: stop.pop(0))
        assert (stop, pieces) == ([], [])
        relay._ending = False
        threading.Timer(0.3, may_go_on.set).start()
        relay.finish(0.05)
        assert pieces == [b"x", b"y"]


def test_another_process_may_keep_the_stream_open() -> None:
    reader, writer = os.pipe()
    stream = open(reader, "rb")  # noqa: SIM115
    relay = Relay(stream, lambda _piece: None)
    relay.finish(0.05)
    relay._thread.join(20)
    assert stream.closed
    os.close(writer)
