"""Start and end the hosts of a bed, run commands on them, disconnect, slow down, stop and kill them."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import jobs
import psutil
from control_group import ControlGroup

from bed import keys
from cpudist.compiler import build_folder
from cpudist.waiting import poll

# What is compiled here serves all hosts, whose ranks may have another home.
_CACHE = {"CPUDIST_CACHE": str(build_folder())}
_START_SECONDS = 30.0
_LEAVE_SECONDS = 5.0  # what a job's processes get to be gone by themselves after its command has ended

_WITH_PYTEST = ["setpriv", "--pdeathsig", "KILL"]  # the kernel kills the command when pytest dies
_NAMESPACES = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]
# The shell stays outside and waits for the command inside. nsenter itself would stop when its child is stopped, and the
# kernel could not end the namespace meanwhile.
_RUN_INSIDE = ["--mount", "--uts", "--ipc", "--net", "--pid", "--no-fork", "sh", "-c", '"$@"; exit $?', "sh"]
_SWITCH = "ip link add br0 type bridge stp_state 0 forward_delay 0 && ip link set br0 up && echo ready && exec cat"


def missing() -> str | None:
    """Return why there can be no hosts here, in one line that names the remedy; None where there can be."""
    if os.geteuid() != 0:
        return "several hosts on one machine need root"
    programs = {"ip": "iproute2", "/usr/sbin/sshd": "openssh-server", "ssh": "openssh-client", "nsenter": "util-linux"}
    for program, package in programs.items():
        if shutil.which(program) is None:
            return f"several hosts on one machine need {program}: apt-get install {package}"
    mount = [*_NAMESPACES, "mount", "-t", "proc", "proc", "/proc"]
    trial = subprocess.run(mount, capture_output=True, text=True, timeout=_START_SECONDS, check=False)
    return f"no namespaces can be made here: {trial.stderr.strip()}" if trial.returncode else None


@dataclass
class _Host:
    port: str  # the interface of the switch that its cable leads to
    process: subprocess.Popen[str]  # unshare, which waits for `first`
    first: psutil.Process
    namespace: str  # of its processes
    own: frozenset[int]  # the processes that are there without any job


@dataclass(frozen=True)
class Ended:
    """How a watched command ended."""

    returncode: int | None  # None: it had to be killed
    output: str
    left: dict[str, dict[int, str]]  # for each host the processes that were left
    at: float  # time.monotonic() when it had returned and nothing was left, or at the end of the timeout


class Bed:
    """Some hosts h0, h1, … that reach each other by name and over ssh without a password.

    They share this machine's file system, so a path means the same on all of them, as on a cluster's network disk.
    `addresses` gives the IPv4 and the IPv6 address of each.

    Args:
        folder: an existing folder for the keys, hostfiles and logs of this bed.
        hosts: number of hosts.
    """

    def __init__(self, folder: Path, hosts: int = 2) -> None:
        self.addresses = {f"h{index}": (f"10.77.0.{10 + index}", f"fd77::{10 + index}") for index in range(hosts)}
        self._folder = folder
        self._hosts: dict[str, _Host] = {}
        self._end = ExitStack()

    def __enter__(self) -> Bed:
        keys.write(self._folder, self.addresses)
        with self._end:  # ends what has started if the rest does not
            self._switch = self._start("switch", [*_WITH_PYTEST, "unshare", "--net", "sh", "-c", _SWITCH])
            for name in self.addresses:
                self._start_host(name)
            self._end = self._end.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    # Running things

    def run(
        self,
        host: str,
        command: list[str],
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> jobs.Result:
        """Run `command` on a host to its end, as `jobs.run` does; processes left on any host fail the test too."""
        try:
            result = jobs.run(self._inside(host, command, cwd), timeout, {**_CACHE, **(env or {})})
            poll(lambda: not self._left(), _LEAVE_SECONDS)
            left = self._left()
        finally:
            self._kill_jobs()
        assert not left, f"{command} left processes behind: {left}\n{result.output}"
        return result

    def watch(self, host: str, command: list[str], timeout: float, env: Mapping[str, str] | None = None) -> Ended:
        """Run `command` on a host and see how it ends; what is left after `timeout`, on any host, is killed."""
        output = self._folder / "output.log"
        process = self.start(host, command, output, env)
        poll(lambda: process.poll() is not None and not self._left(), timeout)
        at = time.monotonic()
        status, left = process.poll(), self._left()
        self._kill_jobs()
        process.kill()
        process.wait(_START_SECONDS)
        return Ended(status, output.read_text(), left, at)

    def start(
        self,
        host: str,
        command: list[str],
        output: Path,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start `command` on a host and return at once; what it writes goes to `output`. It ends with the bed."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._inside(host, command, cwd),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=jobs.environment({**_CACHE, **(env or {})}),
                start_new_session=True,
            )
        self._end.callback(process.wait, _START_SECONDS)
        self._end.callback(process.kill)
        return process

    def add_names(self, names: Mapping[str, str]) -> None:
        """Add names to every host's /etc/hosts, or give them to other hosts: name -> host."""
        file = self._folder / "hosts"  # is mounted, so it stays the same file
        others = [line for line in file.read_text().splitlines() if line.split()[-1] not in names]
        added = [f"{self.addresses[host][0]} {name}" for name, host in names.items()]
        file.write_text("".join(f"{line}\n" for line in others + added))

    def drop_ipv4(self) -> None:
        """Leave all hosts their IPv6 addresses alone."""
        for name, (_, ipv6) in self.addresses.items():
            self.addresses[name] = (ipv6, ipv6)
            _in_network_of(self._hosts[name].first.pid, "ip", "-4", "address", "flush", "dev", "eth0")
        self.add_names({name: name for name in self.addresses})

    def _inside(self, host: str, command: list[str], cwd: str | Path | None = None) -> list[str]:
        first = str(self._hosts[host].first.pid)
        inside = [*_WITH_PYTEST, "nsenter", "--target", first, *_RUN_INSIDE, "env", f"--chdir={cwd or Path.cwd()}"]
        return [*inside, *command]

    def hostfile(self, slots: int | None = None) -> str:
        """Write a file that names all hosts, one per line, with `slots` in Open MPI's notation; return its path."""
        path = self._folder / f"hostfile-{slots}"
        path.write_text("".join(f"{name} slots={slots}\n" if slots else f"{name}\n" for name in self.addresses))
        return str(path)

    def processes(self, host: str) -> dict[int, str]:
        """Return the processes of a host besides its own sshd: this machine's process id -> command line."""
        if host not in self._hosts:  # it has been killed
            return {}
        own = self._hosts[host].own
        return {pid: line for pid, line in self._members(host).items() if pid not in own}

    # Breaking things

    def disconnect(self, host: str) -> None:
        """Take the host's link down."""
        self._on_switch("ip", "link", "set", self._hosts[host].port, "down")

    def connect(self, host: str) -> None:
        """Bring the host's link up, and wait until the switch forwards to it."""
        port = self._hosts[host].port
        self._on_switch("ip", "link", "set", port, "up")

        def forwards() -> bool:
            return "state forwarding" in self._on_switch("ip", "-details", "link", "show", port)

        assert poll(forwards, _START_SECONDS), f"the switch does not forward to {host}"
        for other in self._hosts.values():  # an ARP request that was sent while the link was down has failed
            _in_network_of(other.first.pid, "ip", "neighbour", "flush", "dev", "eth0")

    def limit(self, rate: str | None, *names: str, burst: str = "256kb") -> None:
        """Limit the links of these hosts, or all, to `rate` in each direction, in the notation of tc; None: no limit.

        After a pause, `burst` bytes pass at once.
        """
        discipline = ["tbf", "rate", rate, "burst", burst, "latency", "20ms"] if rate else ["noqueue"]
        for host in (self._hosts[name] for name in names or self._hosts):
            self._on_switch("tc", "qdisc", "replace", "dev", host.port, "root", *discipline)
            _in_network_of(host.first.pid, "tc", "qdisc", "replace", "dev", "eth0", "root", *discipline)

    def join(self, host: str, group: ControlGroup) -> None:
        """Move the host's own processes into a control group, and with them all that is started over ssh."""
        for pid in self._hosts[host].own:
            group.join(pid)

    def send_signal(self, host: str, number: signal.Signals) -> None:
        """Send a signal to every process of the host. If all are stopped, its kernel still accepts connections."""
        for pid in self._members(host):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self, host: str) -> None:
        """Take the host's link down and kill its processes, as a loss of power does. It cannot be started again."""
        self.disconnect(host)
        _end(self._hosts.pop(host))

    # How it is done

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[str]:
        """Start a command that prints "ready" and runs until it is killed; the bed kills it at the end."""
        with open(self._folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for pytest, which ends us
            )
        self._end.callback(_kill, process)
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        if not ready or process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} did not start: {(self._folder / f'{name}.log').read_text()}")
        return process

    def _start_host(self, name: str) -> None:
        program = [sys.executable, "-I", str(Path(__file__).with_name("host.py")), name, str(self._folder)]
        process = self._start(name, [*_WITH_PYTEST, *_NAMESPACES, *program])
        (first,) = psutil.Process(process.pid).children()
        own = frozenset([first.pid, *(child.pid for child in first.children())])
        host = _Host(f"to-{name}", process, first, os.readlink(f"/proc/{first.pid}/ns/pid"), own)
        self._end.callback(_end, host)
        self._hosts[name] = host
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(first.pid)]
        self._on_switch("ip", "link", "add", host.port, "master", "br0", *cable)
        ipv4, ipv6 = self.addresses[name]
        _in_network_of(first.pid, "ip", "address", "add", f"{ipv4}/24", "dev", "eth0")
        # nodad: at once, without asking first whether somebody else has it.
        _in_network_of(first.pid, "ip", "address", "add", f"{ipv6}/64", "dev", "eth0", "nodad")
        _in_network_of(first.pid, "ip", "link", "set", "eth0", "up")
        self.connect(name)

    def _on_switch(self, *command: str) -> str:
        return _in_network_of(self._switch.pid, *command)

    def _members(self, host: str) -> dict[int, str]:
        members = {}
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):  # it has ended meanwhile
                if os.readlink(f"/proc/{process.pid}/ns/pid") == self._hosts[host].namespace:
                    members[process.pid] = " ".join(process.cmdline())
        return members

    def _left(self) -> dict[str, dict[int, str]]:
        return {name: left for name in self._hosts if (left := self.processes(name))}

    def _kill_jobs(self) -> None:
        killed = jobs.kill_all(lambda: [pid for pids in self._left().values() for pid in pids], _LEAVE_SECONDS)
        assert killed, f"processes that cannot be killed: {self._left()}"


def _end(host: _Host) -> None:
    """Kill a host's first process. The kernel then kills all others in its namespace, and unshare ends."""
    with suppress(psutil.NoSuchProcess):
        host.first.kill()
    host.process.wait(_START_SECONDS)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=_START_SECONDS)  # closes the pipes


def _in_network_of(pid: int, *command: str) -> str:
    inside = ["nsenter", "--target", str(pid), "--net", *command]
    return subprocess.run(inside, check=True, stdout=subprocess.PIPE, text=True, timeout=_START_SECONDS).stdout
