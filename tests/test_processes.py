"""Processes as /proc shows them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cpudist import processes


def test_this_process_and_its_parents() -> None:
    own = processes.read(os.getpid())
    assert own is not None
    assert (own.pid, own.parent) == (os.getpid(), os.getppid())
    assert processes.read_all()[own.pid] == own
    assert next(processes.ancestors()).pid == os.getppid()
    assert processes.executable(own.pid) == Path(sys.executable).resolve()
    assert (processes.environment(own.pid) or {}).keys() <= os.environ.keys() | {"PYTEST_VERSION"}


def test_the_age_of_this_process() -> None:
    first = processes.own_age()
    assert 0 < first <= processes.own_age() < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(time.time() - processes.own_age() - psutil.Process().create_time()) < 60


@pytest.mark.job
def test_a_script_has_its_own_name(tmp_path: Path) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\nread line; echo $line; read line\n")
    script.chmod(0o755)
    with _running(str(script)) as running:
        process = processes.read(running.pid)
        assert process is not None
        assert process.name == "mpirun"
    assert processes.read(running.pid) is None
    assert processes.environment(running.pid) is None
    assert processes.executable(running.pid) is None


@contextmanager
def _running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs: the kernel shows neither name nor variables of one that is still being started."""
    with subprocess.Popen([program], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("here\n")
        process.stdin.flush()
        assert process.stdout.readline() == "here\n"
        yield process
