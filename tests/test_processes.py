"""Processes as /proc shows them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cpudist import processes


def test_this_process_and_its_parents() -> None:
    own = processes.read(os.getpid())
    assert (own.pid, own.parent) == (os.getpid(), os.getppid())
    assert processes.read_all()[own.pid] == own
    assert next(processes.ancestors()).pid == os.getppid()
    assert processes.executable(own.pid) == Path(sys.executable).resolve()


def test_the_age_of_this_process() -> None:
    first = processes.own_age()
    assert 0 < first <= processes.own_age() < time.clock_gettime(time.CLOCK_BOOTTIME)
    assert abs(time.time() - processes.own_age() - psutil.Process().create_time()) < 60


@pytest.mark.job
def test_a_script_has_its_own_name_and_variables(tmp_path: Path) -> None:
    script = tmp_path / "mpirun"
    script.write_text("#!/bin/sh\necho started; read line\n")
    script.chmod(0o755)
    variables = {"PATH": os.defpath, "ONE": "1=2", "NONE": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen([script], stdin=pipe, stdout=pipe, text=True, env=variables) as running:
        assert running.stdout.readline() == "started\n"  # before that the kernel may show the name of the parent
        assert processes.read(running.pid).name == "mpirun"
        assert processes.environment(running.pid) == variables
        assert processes.with_variable("ONE", "1=2") == {running.pid: variables}
        running.communicate()
    assert processes.read(running.pid) is None
    assert processes.environment(running.pid) is None
    assert processes.executable(running.pid) is None
