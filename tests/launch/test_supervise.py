"""Supervision of a launcher of our own making, which does on purpose what a real one does at times."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.job

LINES = 50_000
# Has more to pass on than pipes hold when its rank has ended.
LAUNCHER = f"""
import os, subprocess, sys
subprocess.run(["sleep", "2"], env={{**os.environ, "PMI_RANK": "0"}})
os.close(2)
print(*range({LINES}), sep="\\n")
"""
# Its rank takes a while to save a checkpoint.
SAVER = """
import os, signal, subprocess, sys
numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
rank = (
    "import signal, sys, time\\n"
    "def save(number, _):\\n"
    "    time.sleep({})\\n"
    "    print('saved at', signal.Signals(number).name, flush=True)\\n"
    "    sys.exit(1)\\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, save)\\n"
    "print('at work', flush=True)\\n"
    "time.sleep(1000)"
)
sys.exit(subprocess.run([sys.executable, "-c", rank], env={{**os.environ, "PMI_RANK": "0"}}).returncode)
"""
SUPERVISE = """
import os, sys, uuid
from cpudist.launch import supervise as module
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi import Host

module._ALONE_SECONDS, module._REST_SECONDS = 1.0, 0.2
variables = {**os.environ, "CPUDIST_JOB_ID": uuid.uuid4().hex}
grace = float(sys.argv[2]) if sys.argv[2:] else None
job = module.supervise(IntelMpi, [sys.executable, "-c", sys.argv[1]], variables, [Host("localhost")], grace)
sys.exit(job.status)
"""


def test_a_reader_may_take_its_time() -> None:
    """`cpudist launch … | less`: all ranks have ended, and the launcher cannot before it has passed all on."""
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, LAUNCHER], stdout=subprocess.PIPE, text=True
    ) as supervising:
        try:
            assert supervising.stdout is not None
            assert supervising.stdout.read(2) == "0\n", "the rank has ended"
            with pytest.raises(subprocess.TimeoutExpired):
                supervising.wait(3)  # for us
            assert supervising.stdout.read().split() == [str(number) for number in range(1, LINES)]
            assert supervising.wait(30) == 0
        finally:
            supervising.terminate()


@pytest.mark.parametrize(
    ("number", "grace", "takes", "said"),
    [
        (signal.SIGTERM, "60", 1, "saved at SIGTERM\n"),
        (signal.SIGINT, "60", 0, "saved at SIGINT\n"),
        (signal.SIGUSR1, "60", 0, "saved at SIGUSR1\n"),
        (signal.SIGHUP, "60", 0, "saved at SIGTERM\n"),
        (signal.SIGTERM, "1", 1000, ""),
    ],
)
def test_ranks_get_the_signal_and_time_to_save(number: signal.Signals, grace: str, takes: int, said: str) -> None:
    command = [sys.executable, "-c", SUPERVISE, SAVER.format(takes), grace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervising:
        try:
            assert supervising.stdout is not None
            assert supervising.stdout.readline() == "at work\n"
            supervising.send_signal(number)
            assert supervising.stdout.read() == said
            assert supervising.wait(30) == 128 + number
        finally:
            supervising.terminate()
