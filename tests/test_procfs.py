"""Processes as /proc shows them, and a relay: it passes their output on, also if one keeps the stream open."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from cpudist.processes import procfs
from cpudist.processes.relay import Relay


def test_this_process_its_parents_and_its_age() -> None:
    own = procfs.read(os.getpid())
    assert (own.pid, own.parent) == (os.getpid(), os.getppid())
    assert procfs.read_all()[own.pid] == own
    assert next(procfs.ancestors()).pid == os.getppid()
    assert procfs.executable(own.pid) == Path(sys.executable).resolve()
    first = procfs.own_age()
    assert 0 < first <= procfs.own_age() < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(time.time() - procfs.own_age() - psutil.Process().create_time()) < 60


@pytest.mark.job
def test_a_script_has_its_own_name_and_variables(tmp_path: Path) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho started; read line\n")
    script.chmod(0o755)
    variables = {"PATH": os.defpath, "ONE": "1=2", "NONE": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen([script], stdin=pipe, stdout=pipe, text=True, env=variables) as running:
        assert running.stdout.readline() == "started\n"  # before that the kernel may show the name of the parent
        assert procfs.read(running.pid).name == "mpirun"
        assert procfs.environment(running.pid) == variables
        assert procfs.with_variable("ONE", "1=2") == {running.pid: variables}
        running.communicate()
    assert procfs.read(running.pid) is None
    assert procfs.environment(running.pid) is None
    assert procfs.executable(running.pid) is None


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
