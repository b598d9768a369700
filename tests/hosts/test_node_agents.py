"""Many hosts: how many connections are made at a time, and how many files are open."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys

import pytest

from cpudist.errors import UserError
from cpudist.hosts import node_agents, remote
from cpudist.hosts.node_agents import NodeAgents
from cpudist.launchers.mpi_launcher import Host


class Agent:
    """One that answers when it is asked for the third time."""

    started = 0
    most_at_once = 0
    may_connect_again = False

    def __init__(self, host: Host, job: str, rank_variable: str) -> None:
        self.host, self.is_here = host, host.name == "localhost"
        self.answered, self.asked = False, 0
        self.left = 0
        Agent.started += 1

    def receive(self) -> list[int | None]:
        self.asked += 1
        self.answered = self.asked > 2
        return []

    def keep_alive(self) -> None:
        pass


def test_a_thousand_hosts_are_reached_64_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agents, "_Agent", Agent)
    monkeypatch.setattr(Agent, "started", 0)
    monkeypatch.setattr(Agent, "most_at_once", 0)
    monkeypatch.setattr(node_agents, "_allow_files", lambda count: None)
    receive = NodeAgents._receive

    def counting(self: NodeAgents) -> bool:
        Agent.most_at_once = max(Agent.most_at_once, sum(not agent.answered for agent in self._agents))
        return receive(self)

    monkeypatch.setattr(NodeAgents, "_receive", counting)
    NodeAgents([Host(f"n{number}") for number in range(1000)], "job", "RANK")
    assert Agent.started == 1001, "this host has one, too"
    assert Agent.most_at_once == remote.AT_ONCE == 64


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
