"""Supervision of a launcher of our own making, which does on purpose what a real one does at times."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from cpudist.hosts.supervise import _Output, _suspect, supervise
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import Host
from cpudist.processes.lost_ranks import LostRank

pytestmark = pytest.mark.job

LINES = 50_000
# Has more to pass on than pipes hold when its rank has ended.
LAUNCHER = f"""
import os, subprocess, sys
subprocess.run(["sleep", "2"], env={{**os.environ, "PMI_RANK": "0"}})
os.close(2)
print(*range({LINES}), sep="\\n")
"""
BANNER = "= RANK 1 PID 7 RUNNING AT h0\\n= KILLED BY SIGNAL: 11 (Segmentation fault)\\n"
LOST = "cpudist: rank 0 ended without an error message (killed?)"  # as the store would report the rank
# Its rank takes SECONDS to save a checkpoint; then it is LOST, or not.
SAVER = """
import os, signal, subprocess, sys
numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
rank = (
    "import signal, sys, time\\n"
    "numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)\\n"
    "def save(first, _):\\n"
    "    for number in numbers: signal.signal(number, signal.SIG_IGN)\\n"
    "    print('saving', flush=True)\\n"
    "    time.sleep(SECONDS)\\n"
    "    print('saved at', signal.Signals(first).name, flush=True)\\n"
    "    if LOST: print(LOST, file=sys.stderr)\\n"
    "    sys.exit(1)\\n"
    "for number in numbers: signal.signal(number, save)\\n"
    "print('at work', flush=True)\\n"
    "time.sleep(1000)"
)
status = subprocess.run([sys.executable, "-c", rank], env={**os.environ, "PMI_RANK": "0"}).returncode
print(KILLED, end="")
sys.exit(status)
"""
SUPERVISE = """
import os, sys, uuid
from cpudist.hosts import supervise as module
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import Host
module._ALONE_SECONDS, module._REST_SECONDS, module._START_SECONDS = 1.0, 0.2, 10.0
variables = {**os.environ, "CPUDIST_JOB_ID": uuid.uuid4().hex}
grace = float(sys.argv[2]) if sys.argv[2:] else None
job = module.supervise(IntelMpi, [sys.executable, "-c", sys.argv[1]], variables, [Host("localhost")], grace)
if job.reason:
    print(job.reason, file=sys.stderr)
sys.exit(job.status or 3 * job.output_lost)
"""
COMMAND = [sys.executable, "-c", SUPERVISE]


def test_a_reader_may_take_its_time() -> None:
    """`cpudist launch … | less`: all ranks have ended, and the launcher waits until it can write their output."""
    with subprocess.Popen([*COMMAND, LAUNCHER], stdout=subprocess.PIPE, text=True) as supervising:
        try:
            assert supervising.stdout.read(2) == "0\n", "the rank has ended"
            with pytest.raises(subprocess.TimeoutExpired):
                supervising.wait(3)  # for us
            assert supervising.stdout.read().split() == [str(number) for number in range(1, LINES)]
            assert supervising.wait(30) == 0
        finally:
            supervising.terminate()


USR1, TERM, KILL = signal.SIGUSR1, signal.SIGTERM, "was killed by SIGKILL (dmesg there tells whether memory ran out)"
KILLED = "{0}\n=   BAD TERMINATION OF\n=   RANK 0 PID 9 RUNNING AT h0\n=   KILLED BY SIGNAL: {1} (Killed)\n{0}\n"


@pytest.mark.parametrize(
    ("numbers", "grace", "takes", "lost", "killed", "said", "reason"),
    [
        ([signal.SIGINT], ["60"], 1, "", 0, "saved at SIGINT\n", ""),
        ([USR1], ["60"], 0, "", 0, "saved at SIGUSR1\n", ""),
        ([USR1, TERM], ["60"], 2, "", 0, "saved at SIGUSR1\n", ""),  # Slurm's notice, and its time limit
        ([USR1, TERM, TERM], ["60"], 1000, "", 0, "", "stopped by SIGUSR1\n"),
        ([signal.SIGHUP], ["60"], 0, "", 0, "saved at SIGTERM\n", ""),
        ([TERM], ["1"], 1000, "", 0, "", "stopped by SIGTERM\n"),
        # An own loop does not save: the signal kills it, or memory runs out meanwhile.
        ([TERM], ["60"], 0, LOST, 0, "saved at SIGTERM\n", "stopped by SIGTERM\n"),
        ([signal.SIGHUP], ["60"], 0, "", 15, "saved at SIGTERM\n", "stopped by SIGHUP\n"),
        ([USR1], ["60"], 0, LOST, 9, "saved at SIGUSR1\n", f"stopped by SIGUSR1, and rank 0 on h0 {KILL}\n"),
        ([TERM], [], 0, LOST, 9, "saved at SIGTERM\n", "stopped by SIGTERM\n"),
    ],
)
def test_ranks_get_the_signal_and_time_to_save(
    numbers: list[signal.Signals], grace: list[str], takes: int, lost: str, killed: int, said: str, reason: str
) -> None:
    saver = SAVER.replace("SECONDS", str(takes)).replace("LOST", repr(lost))
    saver = saver.replace("KILLED", repr(KILLED.format("=" * 83, killed) if killed else ""))
    with subprocess.Popen(
        [*COMMAND, saver, *grace], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as supervising:
        try:
            assert supervising.stdout.readline() == "at work\n", supervising.stderr.read()
            supervising.send_signal(numbers[0])
            assert supervising.stdout.readline() == "saving\n"
            for number in numbers[1:]:
                supervising.send_signal(number)
                time.sleep(0.5)
            assert supervising.stdout.read() == said
            assert supervising.stderr.read() == reason
            assert supervising.wait(30) == 128 + numbers[0]
        finally:
            supervising.terminate()


TALKS = "import os\nfor _ in range(100): os.write(1, b'x' * 999 + bytes([10]))\nos.write(2, b'the end')"


@pytest.mark.parametrize(
    ("to", "said"), [("> /dev/full", "No space left"), ("| true", "Broken pipe"), (">&-", "closed")]
)
def test_output_that_cannot_be_written_is_an_error(to: str, said: str) -> None:
    """The job goes on to its end."""
    command = f'set -o pipefail; "$@" {to}'
    words = ["bash", "-c", command, "bash", *COMMAND, TALKS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    # One thread relays each of the two outputs, so either may be written first.
    line = done.stderr.replace("the end", "", 1)
    assert (line.count("\n"), said in line, len(done.stderr) - len(line)) == (1, True, len("the end"))
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("does", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, f"{Path(sys.executable).name}, {KILL}"),
        (f"print('{BANNER}'); raise SystemExit(255)", 128 + 11, "rank 1 on h0 was killed by SIGSEGV"),  # Hydra
        # Open MPI's waits without a bound when a firewall blocks its daemons' answers.
        ("import time; time.sleep(1000)", 1, "started no rank within 10 s"),
    ],
)
def test_a_launcher_that_is_killed_or_starts_no_rank(does: str, status: int, reason: str) -> None:
    done = subprocess.run([*COMMAND, does], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, reason in done.stderr.splitlines()[-1]) == (status, True), done.stderr
    assert done.stderr.count("starting on 1 host: waiting for localhost\n") == (status == 1)


def test_a_reader_without_blocking_gets_all() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with subprocess.Popen([*COMMAND, TALKS], stdout=writer, stderr=subprocess.PIPE) as running:
        os.close(writer)
        assert running.stderr.read(7) == b"the end", "by now it has met a full pipe"
        with open(reader, "rb") as stream:
            assert len(stream.read()) == 100_000
        assert running.wait(30) == 0


@pytest.mark.parametrize("lines", [1, 2, 100])
def test_intels_banner_is_not_shown(lines: int) -> None:
    """It names every rank, also those that the launcher has killed itself; it comes in pieces of so many lines."""
    line, ours = "=" * 83, "=" * 40
    said = "=   BAD TERMINATION OF ONE\n=   RANK 0 PID 9 RUNNING AT h0\n=   KILLED BY SIGNAL: 9 (Killed)\n"
    banner = f"{line}\n{said}{line}\n"
    text = f"{ours}\nstep 1\n\n{banner}\n{banner}step 2\n{line}".encode()
    reader, writer = os.pipe()
    with open(writer, "w") as stream:
        output = _Output("standard output", stream, IntelMpi.banner)
        pieces = text.splitlines(keepends=True)
        for begin in range(0, len(pieces), lines):
            output.write(b"".join(pieces[begin : begin + lines]))
        output.write(b"")
    with open(reader, "rb") as shown:
        assert shown.read().decode() == f"{ours}\nstep 1\n\n\nstep 2\n{line}"
    assert output.tail == text.decode(), "launch learns from it who was killed"


@pytest.mark.parametrize(
    ("killed", "blamed", "host"),
    [
        (None, [2, 3], "h1"),
        (None, [1, 3], None),  # on two hosts
        (None, [], None),  # an exception
        (LostRank(9, 0, "h0"), [3], "h0"),
        (LostRank(9, None, "h1"), [], "h1"),
        (LostRank(9), [1], "h0"),  # the launcher has killed the others, too
    ],
)
def test_the_host_that_a_failure_may_come_from(killed: LostRank | None, blamed: list[int], host: str | None) -> None:
    """Two ranks on each host."""
    found = _suspect(killed, blamed, [Host("h0", 2), Host("h1", 2)])
    assert (found and found.name) == host


def test_launch_learns_from_its_ranks_who_was_lost() -> None:
    tells = "from cpudist.processes.lost_ranks import tell_launch; tell_launch([1])"
    launcher = f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', {tells!r}])\nsys.exit(1)"
    hosts, variables = [Host("localhost", 2)], {**os.environ, "CPUDIST_JOB_ID": uuid.uuid4().hex}
    job = supervise(IntelMpi, [sys.executable, "-c", launcher], variables, hosts)
    assert (job.status, job.suspect) == (1, hosts[0])
    assert not list(Path("/tmp").glob(f"*{variables['CPUDIST_JOB_ID']}*"))
