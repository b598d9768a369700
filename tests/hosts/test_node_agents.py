"""Node agents find a job's processes by their mark alone, report its ranks, and kill them; `launch` has many agents."""

import os
import resource
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from cpudist.errors import UserError
from cpudist.hosts import node_agents
from cpudist.hosts.node_agents import NodeAgents
from cpudist.launchers.mpi_launcher import Host
from cpudist.processes import lost_ranks
from cpudist.processes.procfs import python_main
from cpudist.waiting import poll

pytestmark = pytest.mark.job

Start = Callable[..., subprocess.Popen[str]]
_, *AGENT = python_main("cpudist.hosts.node_agent", "-S")
SLEEP = "import time; time.sleep(60)"
# Starts a child in a session of its own, without any variable, and waits.
STARTS_ANOTHER = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True, env={{}})
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def job() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs, and takes them away after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(words: list[str], **env: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-I", *words], text=True, env={**os.environ, **env}, **pipes)
        started.append(process)
        return process

    yield run
    for process in started:
        with process:  # closes its pipes and waits
            process.kill()


def watch(start: Start, job: str, before: str = "", grace: str = "0") -> subprocess.Popen[str]:
    *flags, program = AGENT
    return start([*flags, program.replace("from", f"{before}; from") if before else program, job, "MY_RANK", grace])


def until(watching: subprocess.Popen[str], line: str) -> list[str]:
    """Return what the agent reports up to `line`."""
    said = []
    while not said or said[-1] != line:
        text = watching.stdout.readline()  # one in every second at least
        assert text, f"it ended without {line}: {said}"
        said.append(text.strip())
        assert len(said) < 60, said
    return said


def say(watching: subprocess.Popen[str], word: str) -> None:
    watching.stdin.write(f"{word}\n")
    watching.stdin.flush()


@pytest.mark.parametrize("before", ["", "import os; del os.pidfd_open"])
def test_it_tells_of_ranks_and_ends_what_is_left(start: Start, job: str, before: str) -> None:
    """Also on a Python that lacks `os.pidfd_open`. sshd starts a launcher's helpers without the mark of the job."""
    watching = watch(start, job, before)
    until(watching, "ranks 0")
    first = start(["-c", STARTS_ANOTHER.replace(", env={}", "")], CPUDIST_JOB_ID=job, MY_RANK="0")  # a data worker
    second = start(["-c", SLEEP], CPUDIST_JOB_ID=job, MY_RANK="1")
    helper = start(["-c", SLEEP], CPUDIST_JOB_ID=job)
    stranger = start(["-c", SLEEP], CPUDIST_JOB_ID="another", MY_RANK="0")
    launchers = start(["-c", STARTS_ANOTHER.replace("env={}", f"env={{'CPUDIST_JOB_ID': {job!r}}}")])
    assert launchers.stdout.readline(), "it has started a process of the job"
    until(watching, "ranks 2")
    second.kill()
    until(watching, "gone 1")
    until(watching, "ranks 1")
    say(watching, "signal 15")
    until(watching, "gone 0")
    say(watching, "end")
    until(watching, "left 0")
    assert first.wait(10) == -15
    assert helper.wait(10) == launchers.wait(10) == -9
    assert stranger.poll() is None


def test_a_child_of_a_rank_is_no_rank_and_goes_with_it(start: Start, job: str) -> None:
    """The rank has named itself in bytes that are no text (prctl(2))."""
    watching = watch(start, job)
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) \\xfe')"
    rank = start(["-c", named + STARTS_ANOTHER], CPUDIST_JOB_ID=job, MY_RANK="0")
    child = psutil.Process(int(rank.stdout.readline()))
    assert "ranks 2" not in until(watching, "ranks 1") + until(watching, "ranks 1")
    rank.kill()
    until(watching, "gone 0")
    assert child.is_running()
    say(watching, "end")
    until(watching, "left 0")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_another_agent_takes_its_place_or_it_ends_the_job(start: Start, job: str) -> None:
    """Its input ends when ssh is lost, or `cpudist launch` is killed."""
    first = watch(start, job, grace="30")
    rank = start(["-c", SLEEP], CPUDIST_JOB_ID=job, MY_RANK="0")
    until(first, "ranks 1")
    first.stdin.close()
    second = watch(start, job, grace="0.5")
    until(second, "ranks 1")
    assert first.wait(10) == 0
    assert rank.poll() is None
    second.stdin.close()
    until(second, "left 0")
    assert rank.wait(10) == -9


# As sshd: starts a rank for a launcher, by a shell, and perhaps another session of the user, who shares the connection.
SSHD = """
sh -c 'CPUDIST_JOB_ID=$0 MY_RANK=$1 sleep 60 >&2; :' "$1" "$2" &
if [ "$3" ]; then sleep 60 >&2 & fi
echo started
wait
"""


def test_silence_ends_the_job(start: Start, job: str, tmp_path: Path) -> None:
    """A link that has gone down ends nobody's input. Connections end, but not those that the user shares."""
    (tmp_path / "sshd").write_text(SSHD)
    command, pipe = ["sh", str(tmp_path / "sshd"), job], {"stdout": subprocess.PIPE}
    watching = watch(start, job, "import cpudist.hosts.node_agent as agent; agent.KEEPALIVE_TIMEOUT = 6")
    until(watching, "ranks 0")
    with subprocess.Popen([*command, "1"], **pipe) as own, subprocess.Popen([*command, "2", "x"], **pipe) as shared:
        try:
            assert own.stdout.readline() == shared.stdout.readline() == b"started\n"
            rank = start(["-c", SLEEP], CPUDIST_JOB_ID=job, MY_RANK="0")
            until(watching, "ranks 3")
            until(watching, "left 0")
            assert rank.wait(10) == -9
            assert own.wait(10) == -9
            assert shared.poll() is None
        finally:
            for process in (*psutil.Process(shared.pid).children(), own, shared):
                process.kill()


# Instead of an agent: reports what the test says, writes down what it is told, and reports again at its end.
STAND_IN = """
: > "$1"
echo "$2" | tr ";" "\\n"
while read -r line && echo "$line" >> "$1" && [ "$line" != end ]; do :; done
echo "$3"
"""
SAYS = {
    "h0": ("Welcome 2;ranks 3;gone 2;went 0;went 1", "left 0"),
    "h1": ("ranks 0", "left 2"),
    "h2": ("hi;ranks 1;gone 7", ""),
    "localhost": ("ranks 1;gone 9", "left 0"),
    "silent": ("Welcome 2", ""),
}


def test_what_agents_report_and_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []

    def command_on(host: Host, words: list[str]) -> list[str]:
        assert len([*tmp_path.iterdir()]) == len(started), "each begins when the one before has answered"
        started.append([host.name, *words[-3:]])
        return ["sh", "-c", STAND_IN, "sh", str(tmp_path / host.name), *SAYS[host.name]]

    monkeypatch.setattr(node_agents, "command_on", command_on)
    monkeypatch.setattr(node_agents, "AT_ONCE", 1)
    _, h1, h2 = hosts = [Host(name) for name in ("h0", "h1", "h2")]
    agents = NodeAgents(hosts, "job", "RANK")
    assert started == [*([host.name, "job", "RANK", "8.0"] for host in hosts), ["localhost", "job", "RANK", "0"]]
    assert poll(lambda: agents.tick() or agents.ranks_ended, 20)
    assert agents.first_ended == {"h0": 2, "h2": 7, "localhost": 9, socket.gethostname(): 9}
    assert (agents.had_ranks, agents.without_ranks, agents.lost) == (True, [h1], [])
    assert not agents.signal_ranks(15)
    monkeypatch.setattr(lost_ranks, "silence_seconds", lambda end: 0.1)
    assert not poll(agents.tick, 0.5)
    said = capsys.readouterr().err.splitlines()
    (h1_is_named,) = [line for line in said if "h1" in line]
    assert "not answer for 0 s; the job ends at 30 s" in h1_is_named
    assert agents.end() == [h1, h2], "one has processes left, and one does not say"
    assert {path.read_text() for path in tmp_path.iterdir()} == {"signal 15\nend\n"}

    monkeypatch.setattr(node_agents, "_START_SECONDS", 1.0)
    monkeypatch.setattr(node_agents, "_END_SECONDS", 1.0)
    with pytest.raises(UserError, match=r"^hostfile: the node agent on silent does not start; try: ssh silent true$"):
        NodeAgents([Host("silent")], "job", "RANK")


def test_a_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    node_agents._allow_files(1024)
    node_agents._allow_files(2048)
    assert asked == [(2048, 4096)]
    with pytest.raises(UserError, match="need 4097 open files, but this session allows 4096; raise ulimit -Hn"):
        node_agents._allow_files(4097)
