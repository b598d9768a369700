"""What a rank prints is shown while the job runs, though Python keeps the output to a pipe back."""

import subprocess
import sys
from pathlib import Path

import jobs
import pytest

_SCRIPT = """
import os, sys, time
import cpudist
world = cpudist.init("gloo")
if world.rank == 0:
    print("step", 0)
    deadline = time.monotonic() + 20
    while not os.path.exists(sys.argv[1]):
        if time.monotonic() > deadline:
            sys.exit("nobody has seen it")
        time.sleep(0.05)
cpudist.shutdown()
"""


@pytest.mark.job
@pytest.mark.parametrize(
    "start",
    [
        jobs.mpirun(1, sys.executable),
        jobs.launch("--nproc", "2", "--", "--backend", "gloo"),
    ],
    ids=["plain under mpirun", "launch"],
)
def test_a_line_is_shown_at_once(tmp_path: Path, start: list[str]) -> None:
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(_SCRIPT)
    command = [*start, str(script), str(seen)]
    with subprocess.Popen(command, env=jobs.environment(), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "step 0\n"
            seen.touch()
            assert running.wait(60) == 0
        finally:
            running.terminate()
