"""The node agent: watches a job's processes on one host and kills them when the job is over.

    python node_agent.py JOB RANK_VARIABLE SECONDS

JOB is the value of CPUDIST_JOB_ID in the environment of the job's processes, by which the agent finds them. `cpudist
launch` starts an agent on every host before the job, and keeps sending it lines on standard input: `signal N` sends a
signal to the ranks, `end` reports the end of the job, and any other line is a keepalive. An agent that gets no line for
a while has lost `cpudist launch` and kills the job's processes. An agent whose input has ended waits SECONDS for
`cpudist launch` to start another agent of this job; if none starts, it also kills the job's processes.

The agent writes a line for each event, and `ranks N`, the number of ranks on this host, at least once per second. `gone
RANK` reports that a rank has ended, `went RANK` that it has ended together with others. `blamed RANK` names a rank that
caused the failure, as a rank of this host reports it. `left N` comes last: the number of processes that could not be
killed.

It imports only the standard library and a few small modules, so it starts fast, and in Python's isolated mode.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

from cpudist.processes import procfs
from cpudist.processes.attempt import JOB_ID
from cpudist.processes.lost_ranks import told
from cpudist.processes.procfs import SSH_DAEMONS, Process

KEEPALIVE_TIMEOUT = 30.0  # seconds; long enough for TCP to resend after an outage of 20 s
_SCAN_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_KILL_SECONDS = 5.0


def main() -> None:
    """Watch the job's processes until `cpudist launch` ends the job or is lost; then kill them."""
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP, signal.SIGPIPE):
        signal.signal(ignored, signal.SIG_IGN)  # `cpudist launch` handles the terminal's signals and sends us a line
    os.set_blocking(0, False)
    job, rank_variable, grace = sys.argv[1:]
    agent = _Agent(job, rank_variable)
    received_at, text = time.monotonic(), b""
    while time.monotonic() - received_at < KEEPALIVE_TIMEOUT:
        agent.scan()
        if not agent.wait_for_input(_SCAN_SECONDS):
            continue
        try:
            received = os.read(0, 65536)
        except BlockingIOError:
            continue
        *lines, text = (text + received).split(b"\n")
        for line in lines:
            if line.startswith(b"signal "):
                agent.signal_ranks(int(line.split()[1]))
        if not received and agent.is_replaced_within(float(grace)):
            return
        if not received or b"end" in lines:
            break
        received_at = time.monotonic()
    else:
        agent.end_connections()
    left = agent.kill_all()
    for rank in told(job):
        report(f"blamed {rank}")
    report(f"left {left}")


class _Agent:
    """The job's processes on this host, and for each rank a file descriptor that becomes readable when the rank ends.

    In a Python without `os.pidfd_open` the descriptor is None, and the agent polls.
    """

    def __init__(self, job: str, rank_variable: str) -> None:
        self._job = job
        self._rank_variable = rank_variable
        self._words = [job, rank_variable]  # every agent of this job has these arguments
        self._ranks: dict[Process, tuple[str, int | None]] = {}  # process -> (rank, descriptor)
        self._known: dict[int, Process] = {}
        own = procfs.read(os.getpid())
        assert own is not None
        self._own = own

    def scan(self) -> None:
        """Look for new processes of the job, and report the number of ranks."""
        watched = {process.pid for process in self._ranks}
        for pid, rank in self._find().items():
            if rank is not None and pid not in watched:
                with suppress(OSError):  # the process has just ended
                    descriptor = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
                    self._ranks[self._known[pid]] = rank, descriptor
        report(f"ranks {len(self._ranks)}")

    def wait_for_input(self, seconds: float) -> bool:
        """Return whether there is input within `seconds`; report ranks that end meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            descriptors = [descriptor for _, descriptor in self._ranks.values() if descriptor is not None]
            looks = len(descriptors) < len(self._ranks)
            ready, _, _ = select.select([0, *descriptors], [], [], min(left, _LOOK_SECONDS) if looks else left)
            ended = [
                process
                for process, (_, descriptor) in self._ranks.items()
                if descriptor in ready or (descriptor is None and not procfs.lives(process))
            ]
            word = "gone" if len(ended) == 1 else "went"  # the order in which several ended is unknown
            for process in ended:
                rank, descriptor = self._ranks.pop(process)
                report(f"{word} {rank}")
                if descriptor is not None:
                    os.close(descriptor)
            if 0 in ready:
                return True
        return False

    def signal_ranks(self, number: int) -> None:
        for process in self._ranks:
            procfs.send_signal(process, number)

    def is_replaced_within(self, seconds: float) -> bool:
        """Return whether a newer agent of this job starts in time; wait only while processes of the job are left."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._find():
            for process in procfs.read_all().values():
                if process.start > self._own.start:
                    with suppress(OSError):  # that process has ended
                        if procfs.command_line(process.pid)[-3:-1] == self._words:
                            return True
            time.sleep(_LOOK_SECONDS)
        return False

    def end_connections(self) -> None:
        """Kill the job's sshd processes: after a lost link they would wait for their clients for hours.

        Keep an sshd that has other sessions too: the user's ssh_config may let MPI's launcher share a connection.
        """
        self._find()
        parents = {os.getppid(), *(process.parent for process in self._known.values())} - self._known.keys()
        own = {self._own.pid, *self._known}
        shared = {process.parent for process in procfs.read_all().values() if process.pid not in own}
        for pid in parents - shared:
            process = procfs.read(pid)
            if process is not None and process.name in SSH_DAEMONS:
                procfs.send_signal(process, signal.SIGKILL)

    def kill_all(self) -> int:
        """Kill the job's processes, for a few seconds at most; return how many are left."""
        deadline = time.monotonic() + _KILL_SECONDS
        while self._find() and time.monotonic() < deadline:
            for process in self._known.values():
                procfs.send_signal(process, signal.SIGKILL)
            time.sleep(0.05)
        return len(self._find())

    def _find(self) -> dict[int, str | None]:
        """Return the job's living processes by id, each with its rank; None for a process that is not a rank.

        A process belongs to the job if it or an ancestor has had CPUDIST_JOB_ID in its environment. The present
        environment is not enough: a process may overwrite it, and start others with an empty one.
        """
        marked, living = procfs.with_variable(JOB_ID, self._job), procfs.read_all()
        self._known = {
            pid: living[pid]
            for pid, process in self._known.items()
            if pid in living and living[pid].start == process.start
        }
        for pid in marked.keys() & living.keys():
            found: Process | None = living[pid]
            while found is not None:
                self._known[found.pid] = found
                parent = living.get(found.parent)
                found = parent if self._is_helper(parent) else None
        # A child is younger than its parent, and processes that start in the same tick are sorted by their ids.
        for process in sorted(living.values(), key=lambda one: (one.start, one.pid)):
            if process.parent in self._known and process.pid != self._own.pid:
                self._known[process.pid] = process
        ranks = {pid: variables.get(self._rank_variable) for pid, variables in marked.items()}
        return {
            pid: None if ranks.get(process.parent) == ranks.get(pid) else ranks.get(pid)
            for pid, process in self._known.items()
        }

    def _is_helper(self, parent: Process | None) -> bool:
        """Return whether the parent of a job's process is the launcher's daemon, or the shell that started the daemon.

        sshd starts both after this agent, without CPUDIST_JOB_ID. A parent that started before the agent is the init
        process, which adopts orphans, or `cpudist launch` on its own host.
        """
        return parent is not None and parent.start > self._own.start and parent.name not in SSH_DAEMONS


def report(line: str) -> None:
    """Write a line to `cpudist launch`; ignore a closed pipe."""
    with suppress(OSError):
        os.write(1, line.encode(errors="replace") + b"\n")
