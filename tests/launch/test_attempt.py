"""One attempt beside a launcher of our own making, which does on purpose what a real one does at times."""

from __future__ import annotations

import signal
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
# Its rank takes a while to save a checkpoint.
SAVER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = (
    "import signal, sys, time\\n"
    "signal.signal(signal.SIGTERM, lambda *_: (time.sleep({}), print('saved', flush=True), sys.exit(143)))\\n"
    "print('at work', flush=True)\\n"
    "time.sleep(1000)"
)
sys.exit(subprocess.run([sys.executable, "-c", rank], env={{**os.environ, "PMI_RANK": "0"}}).returncode)
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
grace = float(sys.argv[2]) if sys.argv[2:] else None
outcome = module.attempt(launcher, [sys.executable, "-c", sys.argv[1]], variables, [Host("localhost")], grace)
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


@pytest.mark.parametrize(("grace", "takes", "said"), [("60", 1, "saved\n"), ("1", 1000, "")])
def test_ranks_may_save_for_so_long_and_no_longer(grace: str, takes: int, said: str) -> None:
    command = [sys.executable, "-c", ATTEMPT, SAVER.format(takes), grace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attempt:
        try:
            assert attempt.stdout is not None
            assert attempt.stdout.readline() == "at work\n"
            attempt.terminate()
            assert attempt.stdout.read() == said
            assert attempt.wait(30) == 128 + signal.SIGTERM
        finally:
            attempt.terminate()
