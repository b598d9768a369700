"""One attempt beside a launcher of our own making, which does on purpose what a real one does at times."""

from __future__ import annotations

import subprocess
import sys

import pytest

LINES = 50_000
# Has more to pass on than pipes hold when its rank has ended.
LAUNCHER = f"""
import os, subprocess, sys
subprocess.run(["sleep", "2"], env={{**os.environ, "PMI_RANK": "0"}})
os.close(2)
print(*range({LINES}), sep="\\n")
"""
ATTEMPT = """
import os, sys, uuid
from pathlib import Path
from cpudist.launch import attempt as module
from cpudist.launch.hostfile import Host
from cpudist.launch.launchers.intel import Intel

module._ALONE_SECONDS = module._REST_SECONDS = 0.2
launcher = Intel(Path("mpirun"), "")
variables = {**os.environ, "CPUDIST_JOB_ID": uuid.uuid4().hex}
outcome = module.attempt(launcher, [sys.executable, "-c", sys.argv[1]], variables, [Host("localhost")])
sys.exit(outcome.status)
"""


def test_a_reader_may_take_its_time() -> None:
    """`cpudist launch … | less`: all ranks have ended, and the launcher cannot before it has passed all on."""
    with subprocess.Popen([sys.executable, "-c", ATTEMPT, LAUNCHER], stdout=subprocess.PIPE, text=True) as attempt:
        try:
            assert attempt.stdout is not None
            assert attempt.stdout.read(2) == "0\n", "the rank has ended"
            with pytest.raises(subprocess.TimeoutExpired):
                attempt.wait(3)  # for us
            assert attempt.stdout.read().split() == [str(number) for number in range(1, LINES)]
            assert attempt.wait(30) == 0
        finally:
            attempt.terminate()
