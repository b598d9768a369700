"""Many hosts: how many connections are made at a time, and how many files are open."""

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cpudist.errors import UserError
from cpudist.hosts import node_agents, remote
from cpudist.hosts.node_agents import NodeAgents
from cpudist.launchers.mpi_launcher import Host
from cpudist.waiting import poll

# An agent: it reports what the test says, writes down what it is told, and reports again when it is told to end.
AGENT = """
: > "$1"
echo "$2" | tr ";" "\\n"
while read -r line && echo "$line" >> "$1" && [ "$line" != end ]; do :; done
echo "$3"
"""
SAYS = {
    "h0": ("Welcome 2;ranks 3;gone 2;went 0;went 1", "left 0"),
    "h1": ("ranks 0", "left 2"),
    "h2": ("hi;ranks 1;gone 7", ""),
    "localhost": ("ranks 0", "left 0"),
    "silent": ("Welcome 2", ""),
}


@pytest.mark.job
def test_what_agents_report_and_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def command_on(host: Host, words: list[str]) -> list[str]:
        assert len([*tmp_path.iterdir()]) == len(started), "each begins when the one before has answered"
        started.append([host.name, *words[-3:]])
        return ["sh", "-c", AGENT, "sh", str(tmp_path / host.name), *SAYS[host.name]]

    monkeypatch.setattr(node_agents, "command_on", command_on)
    monkeypatch.setattr(node_agents, "AT_ONCE", 1)
    _, h1, h2 = hosts = [Host(name) for name in ("h0", "h1", "h2")]
    agents = NodeAgents(hosts, "job", "RANK")
    assert started == [*([host.name, "job", "RANK", "8.0"] for host in hosts), ["localhost", "job", "RANK", "0"]]
    assert poll(lambda: agents.tick() or agents.ranks_ended, 20)
    assert agents.first_ended == {"h0": 2, "h2": 7}
    assert (agents.had_ranks, agents.without_ranks, agents.lost) == (True, [h1], [])
    assert not agents.signal_ranks(15)
    assert agents.end() == [h1, h2], "one has processes left, and one does not say"
    assert {path.read_text() for path in tmp_path.iterdir()} == {"signal 15\nend\n"}

    monkeypatch.setattr(node_agents, "_START_SECONDS", 1.0)
    monkeypatch.setattr(node_agents, "_END_SECONDS", 1.0)
    with pytest.raises(UserError, match=r"^hostfile: on silent the agent .* does not start; try: ssh silent true$"):
        NodeAgents([Host("silent")], "job", "RANK")


def test_a_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(limits))
    node_agents._allow_files(1024)
    node_agents._allow_files(2048)
    assert asked == [(2048, 4096)]
    with pytest.raises(UserError, match="need 4097 open files, and this session may have 4096; raise ulimit -Hn"):
        node_agents._allow_files(4097)


@pytest.mark.job
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "csh"])
def test_every_login_shell_reads_what_was_meant(shell: str) -> None:
    """sshd passes the command line to the user's login shell, and a path may contain any of these characters."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = ["", "it's", "a b", "back\\slash", "at the end\\", "a!b", '"$HOME"', "~", "*", "{a,b}", "=ls", "$(id)", "é"]
    line = " ".join(map(remote.quoted, [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words]))
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"{words!a}\n", done.stderr
