"""Jobs of 2 hosts x 2 ranks, and the ways to break them.

A job is started by an MPI's own mpirun or by `cpudist launch`, and has hosts (`bed`) of its own. test_faults.py breaks
some of them, scripts/faults.py all.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jobs
import psutil
from bed import Bed
from bed.bed import Ended
from control_group import control_group
from mpis import mpirun_on, named

from cpudist.checkpoints.folders import numbered
from cpudist.waiting import poll

START_SECONDS = 120.0
MARGIN_SECONDS = 15.0  # what a job may take beyond its timeout


@dataclass
class Job:
    """A running job, for faults to break.

    Attributes:
        bed: its hosts.
        folder: where its ranks look for orders.
        timeout: seconds after which cpudist ends a job that is stuck.
    """

    bed: Bed
    folder: Path
    timeout: float

    def rank(self, number: int, words: str = "working.py") -> psutil.Process:
        """The process of a rank, as this machine sees it; its command line holds `words`."""
        host = f"h{number // 2}"
        for pid in self.bed.processes(host):
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                variables = process.environ()
                rank = int(variables.get("PMI_RANK") or variables.get("OMPI_COMM_WORLD_RANK", -1))
                if words in " ".join(process.cmdline()) and rank == number:
                    return process
        raise LookupError(f"rank {number} is not on {host}: {self.bed.processes(host)}")

    def find(self, host: str, words: str) -> list[psutil.Process]:
        """The processes of a host whose command line holds `words`."""
        return [psutil.Process(pid) for pid, line in self.bed.processes(host).items() if words in line]

    def kill_ssh(self, words: str = "ssh") -> None:
        """Kill the connections that h0 has opened with such a command line."""
        for process in self.find("h0", words):
            if process.name() == "ssh":
                process.kill()

    def order(self, *files: str) -> None:
        """Leave files that the ranks look for."""
        for name in files:
            (self.folder / name).touch()


def out_of_memory(job: Job) -> None:
    """The kernel kills rank 3, which asks for more than its cgroup may have."""
    with control_group() as group:
        group.limit("memory", memory__max="64M", memory__limit_in_bytes="64M")
        group.join(job.rank(3).pid)
        job.order("allocate-3")
        psutil.wait_procs([job.rank(3)], job.timeout)


def freeze(job: Job) -> None:
    """Every process of h1 stands still. Nothing on it can end before it goes on, which it does when the job is over."""
    for _ in range(3):  # a process may fork meanwhile
        job.bed.send_signal("h1", signal.SIGSTOP)
    time.sleep(job.timeout + MARGIN_SECONDS / 2)
    job.bed.send_signal("h1", signal.SIGCONT)


def interrupt(job: Job, seconds: float, *, frozen: bool = False) -> None:
    """h1 does not answer for some seconds, cut off or with every process stopped. Then the job goes on to its end."""
    if frozen:
        job.bed.send_signal("h1", signal.SIGSTOP)
    else:
        job.bed.disconnect("h1")
    time.sleep(seconds)
    if frozen:
        job.bed.send_signal("h1", signal.SIGCONT)
    else:
        job.bed.connect("h1")
    job.order("end")


def lose_ssh(job: Job) -> None:
    """End the connection by which the launcher has reached h1. Some need it only to start; the job then goes on."""
    job.kill_ssh()
    time.sleep(3)
    job.order("end")


def lose_agent(job: Job) -> None:
    """End the connection between `cpudist launch` and its agent on h1, which is made again; mpirun's stays."""
    first = job.find("h1", "cpudist.hosts.node_agent")
    job.kill_ssh("cpudist.hosts.node_agent")
    # The next agent is there, and the first one has left to it, before the job may end.
    assert poll(lambda: not any(process.is_running() for process in first), job.timeout)
    assert job.find("h1", "cpudist.hosts.node_agent")
    job.order("end")


def signal_launcher(job: Job, number: signal.Signals) -> None:
    """As a terminal, `timeout` or a scheduler sends it: to the command that the user has started, and its children."""
    first = min(job.find("h0", "working.py"), key=lambda one: one.create_time())
    for one in [first, *first.children()]:
        with suppress(psutil.Error):
            one.send_signal(number)


def flood(job: Job) -> None:
    """Strangers on h1 at the store's port: garbage, silence, and more connections than there may be."""
    (server,) = job.find("h0", "cpudist.store.server")
    listening = subprocess.check_output(["nsenter", "--target", str(server.pid), "--net", "ss", "-Hltnp"], text=True)
    (port,) = set(re.findall(rf":(\d+)\s.*pid={server.pid},", listening))
    code = """if True:
        import contextlib, socket, sys
        garbage = b'GET / HTTP/1.0\\r\\n\\r\\n'
        strangers = [socket.create_connection(('10.77.0.10', int(sys.argv[1])), 5)]
        strangers[0].sendall(garbage * 9)
        with contextlib.suppress(ConnectionError):
            while strangers[0].recv(4096):  # until the store disconnects whoever sends garbage
                pass
        for number in range(600):
            with contextlib.suppress(OSError):  # disconnected already
                strangers.append(socket.create_connection(('10.77.0.10', int(sys.argv[1])), 5))
                strangers[-1].sendall(garbage * (number % 3 and number))
    """
    # In the network of h1, but no process of its: the job's are counted.
    command = ["nsenter", "--target", str(job.rank(2).pid), "--net", sys.executable, "-c", code, port]
    subprocess.run(command, timeout=60, check=True)
    job.order("end")


def lose_store_late(job: Job) -> None:
    """The store goes when rank 0 has come to its end, and the others have not."""
    job.order("stuck-1", "stuck-2", "stuck-3", "leave-0")
    time.sleep(2)
    job.find("h0", "cpudist.store.server")[0].kill()


def leave_a_child(job: Job) -> None:
    """Rank 3 is killed when it has a child in a session of its own, without any variable."""
    job.order("child-3")
    time.sleep(3)
    job.rank(3).kill()


def kill_with_checkpoints(job: Job, *, damage: bool = False) -> None:
    """Kill rank 3 once there are two checkpoints; the next attempt ends by itself."""
    saved = job.folder / "out"
    assert poll(lambda: len(numbered(saved)) > 1, START_SECONDS), "no checkpoints"
    job.rank(3).suspend()  # nothing is saved any more
    time.sleep(1)
    if damage:
        *_, newest = numbered(saved).values()
        os.truncate(newest / "__0_0.distcp", 100)
    job.rank(3).kill()
    job.order("end")


@dataclass(frozen=True)
class Fault:
    """A way to break a job.

    Attributes:
        strike: breaks it.
        ends_well: whether its exit status must be 0; None: either will do.
        says: what must be among its output.
        launch_only: whether only `cpudist launch` can stand it.
        options: of `cpudist launch`.
        variables: environment variables of the job.
        shell: how a shell runs the command; empty: it runs without one.
        timeout: the least `--timeout`.
    """

    strike: Callable[[Job], None]
    ends_well: bool | None = False
    says: str = ""
    launch_only: bool = False
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    shell: str = ""
    timeout: float = 0.0


_SAVES, _STALL = {"WORKING_SAVES": "1"}, {"WORKING_STALL": "10"}
_restarted = partial(Fault, ends_well=True, launch_only=True, options=("--max-restarts", "1"), variables=_SAVES)

FAULTS: dict[str, Fault] = {
    "none": Fault(lambda job: job.order("end"), ends_well=True),
    "rank 3 killed": Fault(lambda job: job.rank(3).kill()),
    "rank 0 killed": Fault(lambda job: job.rank(0).kill()),
    "rank 3 out of memory": Fault(out_of_memory),
    "rank 3 raises": Fault(lambda job: job.order("raise-3")),
    "disk full on rank 0": Fault(lambda job: job.order("full-0")),
    "rank 3 stuck in Python": Fault(lambda job: job.order("stuck-3")),
    "rank 3 stopped": Fault(lambda job: job.rank(3).suspend()),  # MPI's launcher has to kill it
    "link of h1 down": Fault(lambda job: job.bed.disconnect("h1")),
    "h1 loses its power": Fault(lambda job: job.bed.kill("h1")),
    "h1 frozen": Fault(freeze),
    "h1 frozen for 10 s": Fault(partial(interrupt, seconds=10, frozen=True), ends_well=True, timeout=60),
    "link of h1 down for 20 s": Fault(partial(interrupt, seconds=20), True, "h1 answers again", timeout=60),
    "ssh to h1 lost": Fault(lose_ssh, ends_well=None),
    "launch's ssh to h1 lost": Fault(lose_agent, ends_well=True, says="connecting again", launch_only=True),
    "store killed": Fault(lambda job: job.find("h0", "cpudist.store.server")[0].kill()),
    "Ctrl-C": Fault(partial(signal_launcher, number=signal.SIGINT)),
    "SIGTERM": Fault(partial(signal_launcher, number=signal.SIGTERM)),
    "strangers flood the store": Fault(flood, ends_well=True),
    "rank 3 holds the GIL": Fault(lambda job: job.order("gil-3"), says="the limit is 10 s", variables=_STALL),
    "all ranks stuck in a loader": Fault(  # or in a file system: no rank waits for another
        lambda job: job.order("stuck-0", "stuck-1", "stuck-2", "stuck-3"), says="the limit is 10 s", variables=_STALL
    ),
    "store lost after rank 0's end": Fault(lose_store_late, variables=_STALL),
    "rank 3 killed, job restarted": _restarted(kill_with_checkpoints, says="going on from"),
    "rank 3 killed, job queued again": Fault(
        kill_with_checkpoints,
        True,
        "going on from",
        variables={**_SAVES, "CPUDIST_RUN_ID": "queued"},
        shell='"$@" || "$@"',  # as a scheduler queues a job again
    ),
    "checkpoint damaged, job restarted": _restarted(
        partial(kill_with_checkpoints, damage=True), says="trying the one before"
    ),
    "a child without variables": Fault(leave_a_child, launch_only=True),
    "disk full under launch's output": Fault(
        lambda job: job.order("end"), says="output is lost", launch_only=True, shell='"$@" > /dev/full'
    ),
}


@dataclass(frozen=True)
class Way:
    """A way to start two ranks on either host: an MPI's own mpirun, or `cpudist launch --mpi` with it."""

    mpi: str
    launch: bool

    def __str__(self) -> str:
        name = named(self.mpi).name
        return f"`launch`, {name}" if self.launch else name

    def command(self, bed: Bed, timeout: float, fault: Fault) -> list[str]:
        """All that comes before the script."""
        if self.launch:
            options = ["--mpi", self.mpi, "--hostfile", bed.hostfile(2), *fault.options]
            return jobs.launch(*options, "--", "--timeout", str(timeout))
        return [*mpirun_on(bed, self.mpi, 2, *fault.variables), sys.executable]


@dataclass(frozen=True)
class Ending(Ended):
    """How a broken job ended; `seconds` from the fault until the launcher had returned and no process was left."""

    seconds: float

    def is_right(self, fault: str, timeout: float) -> bool:
        """Whether the job ended in time, left nothing behind, and its status tells what happened."""
        timeout = max(timeout, FAULTS[fault].timeout)
        over = self.returncode is not None and not self.left and self.seconds <= timeout + MARGIN_SECONDS
        ends_well, says = FAULTS[fault].ends_well, FAULTS[fault].says
        return over and ends_well in (None, self.returncode == 0) and says in self.output


def run(way: Way, fault: str, timeout: float) -> Ending:
    """Start a job, break it, and watch how it ends; on a busy machine the third start at the latest is in time."""
    for _ in range(3):
        ending, broken = _start(way, fault, max(timeout, FAULTS[fault].timeout))
        if broken:
            break
    assert broken, f"the job ended before it was at work: {ending.returncode}\n{ending.output}"
    return ending


def _start(way: Way, fault: str, timeout: float) -> tuple[Ending, bool]:
    """Return how the job ended, and whether it was at work before."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "bed").mkdir()
        with Bed(folder / "bed") as bed:
            job = Job(bed, folder, timeout)
            broken: list[float] = []
            over = threading.Event()

            def break_it() -> None:
                poll(lambda: over.is_set() or len(list(folder.glob("ready-*"))) == 4, START_SECONDS)
                if not over.is_set():
                    broken.append(time.monotonic())
                    FAULTS[fault].strike(job)

            breaker = threading.Thread(target=break_it)
            breaker.start()
            script = [str(Path(__file__).parents[1] / "hosts" / "checks" / "working.py"), text, str(timeout)]
            command = [*way.command(bed, timeout, FAULTS[fault]), *script]
            if shell := FAULTS[fault].shell:
                command = ["sh", "-c", shell, "sh", *command]
            ended = bed.watch("h0", command, START_SECONDS + timeout + MARGIN_SECONDS, FAULTS[fault].variables)
            over.set()
            breaker.join(60)
            ranks = folder / "stderr"
            output = ended.output + (ranks.read_text(errors="replace") if ranks.exists() else "")
            seconds = ended.at - min(broken, default=ended.at)
            return Ending(ended.returncode, output, ended.left, ended.at, seconds), bool(broken)
