"""Start the node agents of a job (`node_agent.py`), one on every host, exchange lines with them, and end them."""

from __future__ import annotations

import math
import os
import resource
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.hosts import node_agent
from cpudist.hosts.remote import AT_ONCE, CONNECT_SECONDS, command_on, is_here
from cpudist.launchers.mpi_launcher import Host
from cpudist.processes.lost_ranks import SilentHosts
from cpudist.processes.procfs import python_main
from cpudist.waiting import poll

_KEEPALIVE_SECONDS = 1.0
_START_SECONDS = CONNECT_SECONDS + 10.0
_FILES_OF_AGENT = 2  # the pipes to its standard input and output
_OTHER_FILES = 200
_RECONNECT_SECONDS = 8.0  # an agent on another host waits this long for a new connection
_STEADY_SECONDS = 60.0  # a renewed connection that breaks earlier is not renewed again
_END_SECONDS = 8.0  # an agent may take 5 s to kill the job's processes


class NodeAgents:
    """The agents of one job, all started; `UserError` if one does not start.

    Args:
        hosts: the hosts of the job. This host, where the launcher runs, gets an agent even if it is not one of them.

    Attributes:
        first_ended: for each host the rank that ended first; None if several ended together.
    """

    def __init__(self, hosts: Sequence[Host], job: str, rank_variable: str) -> None:
        self.first_ended: dict[str, int | None] = {}
        self._hosts = hosts
        self._silent_hosts = SilentHosts(node_agent.KEEPALIVE_TIMEOUT)
        _allow_files(_FILES_OF_AGENT * len(hosts) + _OTHER_FILES)
        self._agents: list[_Agent] = []
        waiting = [*hosts]

        def started() -> bool:
            while waiting and sum(not agent.answered for agent in self._agents) < AT_ONCE:
                self._agents.append(_Agent(waiting.pop(0), job, rank_variable))
                if not waiting and not any(agent.is_here for agent in self._agents):
                    waiting.append(Host("localhost"))
            self.tick()
            return not waiting and all(agent.answered for agent in self._agents)

        if not poll(started, _START_SECONDS * math.ceil(len(waiting) / AT_ONCE)):
            silent = next(agent for agent in self._agents if not agent.answered)
            self.end()
            why = f"{silent.host.where}: the node agent on {silent.host.name} does not start"
            raise UserError(f"{why}; try: ssh {silent.host.name} true")

    @property
    def had_ranks(self) -> bool:
        return any(agent.had_ranks for agent in self._agents)

    @property
    def without_ranks(self) -> list[Host]:
        """The job's hosts on which no rank has started."""
        return [agent.host for agent in self._agents if agent.host in self._hosts and not agent.had_ranks]

    @property
    def ranks_ended(self) -> bool:
        """Whether ranks have run, and have all ended on the hosts that answer."""
        answering = [agent for agent in self._agents if agent.silence <= 4 * _KEEPALIVE_SECONDS]
        return any(agent.had_ranks for agent in answering) and not any(agent.ranks for agent in answering)

    @property
    def lost(self) -> list[Host]:
        """Hosts whose agent has ended or has stopped answering."""
        return [agent.host for agent in self._agents if agent.is_lost]

    @property
    def blamed(self) -> list[int]:
        """The ranks that a failure report blames; set by `end`."""
        return next((agent.blamed for agent in self._agents if agent.blamed), [])

    def tick(self) -> None:
        """Read the agents' reports, send keepalives and renew lost connections; call it several times per second."""
        self._receive()
        for place, agent in enumerate(self._agents):
            agent.keep_alive()
            if agent.may_connect_again:
                self._agents[place] = agent.connected_again()
        answered = [agent for agent in self._agents if agent.answered and not agent.is_lost]
        self._silent_hosts.report({agent.host.name: agent.silence for agent in answered})

    def signal_ranks(self, number: int) -> bool:
        """Send a signal to all ranks; return whether there are any."""
        for agent in self._agents:
            agent.send(f"signal {number}")
        return any(agent.ranks for agent in self._agents)

    def end(self) -> list[Host]:
        """Let the agents kill the job's processes, in a bounded time; return hosts where some may be left."""
        for agent in self._agents:
            agent.send("end")
        poll(lambda: self._receive() or all(one.left is not None or one.ended for one in self._agents), _END_SECONDS)
        for agent in self._agents:
            agent.close()
        return [agent.host for agent in self._agents if agent.left != 0]

    def _receive(self) -> bool:
        for agent in self._agents:
            for rank in agent.receive():
                self.first_ended.setdefault(agent.host.name, rank)
                if agent.is_here:  # where it is called localhost, Hydra prints this name
                    self.first_ended.setdefault(socket.gethostname(), rank)
        return False


def _allow_files(count: int) -> None:
    """Raise the soft limit on open files to `count`; `UserError` if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise UserError(f"so many hosts need {count} open files, but this session allows {hard}; raise ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


class _Agent:
    """One agent and its latest reports."""

    def __init__(self, host: Host, job: str, rank_variable: str) -> None:
        self.host = host
        self._of = (host, job, rank_variable)
        self._again = False
        self.ranks = 0
        self.had_ranks = False
        self.answered = False
        self.ended = False
        self.blamed: list[int] = []
        self.left: int | None = None
        words = [*python_main("cpudist.hosts.node_agent", "-I", "-S"), job, rank_variable]
        self.is_here = is_here(host.name)
        # An agent on this host gets no grace, because its input ends only if this process ends.
        command = command_on(host, [*words, "0" if self.is_here else str(_RECONNECT_SECONDS)])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the terminal's Ctrl-C must not reach ssh
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._text = b""
        self._received = self._sent = self._started = time.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether the agent has ended or has stopped answering."""
        if self._again and not self.answered:
            return self.ended or self.silence > _RECONNECT_SECONDS
        return self.ended or self.silence > node_agent.KEEPALIVE_TIMEOUT

    @property
    def may_connect_again(self) -> bool:
        """Whether to renew a lost connection: the first one, or one that has lasted a minute."""
        steady = not self._again or time.monotonic() - self._started > _STEADY_SECONDS
        return self.ended and self.answered and self.left is None and not self.is_here and steady

    def connected_again(self) -> _Agent:
        """Close the connection, and return a new agent on the same host."""
        say(f"warning: the ssh connection to {self.host.name} was lost; connecting again")
        self.close()
        agent = _Agent(*self._of)
        agent.ranks, agent.had_ranks, agent._again = self.ranks, self.had_ranks, True
        return agent

    @property
    def silence(self) -> float:
        """Seconds since the agent's last report."""
        return time.monotonic() - self._received

    def receive(self) -> list[int | None]:
        """Read the agent's reports; return the ranks that have ended, None for each that ended with others."""
        with suppress(BlockingIOError):
            piece = os.read(self._output, 65536)
            self.ended = self.ended or not piece
            self._text += piece
            self._received = time.monotonic()
        *lines, self._text = self._text.split(b"\n")
        gone: list[int | None] = []
        for line in lines:
            word, _, number = line.decode(errors="replace").partition(" ")
            if word not in ("ranks", "gone", "went", "blamed", "left") or not number.isdecimal():
                continue  # the line is a login shell's greeting
            self.answered = True
            if word == "ranks":
                self.ranks = int(number)
                self.had_ranks = self.had_ranks or self.ranks > 0
            elif word in ("gone", "went"):
                self.ranks -= 1
                gone.append(int(number) if word == "gone" else None)
            elif word == "blamed":
                self.blamed.append(int(number))
            else:
                self.left = int(number)
        return gone

    def keep_alive(self) -> None:
        """Send a keepalive if no line was sent for a second."""
        if time.monotonic() - self._sent > _KEEPALIVE_SECONDS:
            self.send("here")

    def send(self, line: str) -> None:
        """Send a line if the pipe has room; never block."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._input, f"{line}\n".encode())
        self._sent = time.monotonic()

    def close(self) -> None:
        """Kill the agent on this host, or the ssh to its host; an agent that cannot be reached ends by its timeout."""
        with self._process:  # closes its pipes and waits
            self._process.kill()
