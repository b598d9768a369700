"""The first process of a host: sets up the host in its namespaces, starts sshd, and runs as long as the host.

    python host.py NAME FOLDER

Prints "ready" when others may connect, and ends when its standard input does.
"""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_SSHD_SECONDS = 20.0


def main(name: str, folder: Path) -> None:
    socket.sethostname(name)
    _sh("ip", "link", "set", "lo", "up")
    _mount(folder)
    _start_sshd()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel then reaps the orphans that a first process inherits
    print("ready", flush=True)
    sys.stdin.read()


def _mount(folder: Path) -> None:
    """Mount what each machine has for itself: processes, shared memory, the files of its daemons, its network."""
    _sh("mount", "--make-rprivate", "/")
    _sh("mount", "-t", "proc", "proc", "/proc")
    _sh("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    _sh("mount", "-t", "tmpfs", "tmpfs", "/run")
    _mount_sysfs()
    _sh("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    _sh("mount", "--bind", str(folder / "ssh"), "/etc/ssh")
    own = Path("~root/.ssh").expanduser()
    if own.is_dir():  # hide the user's keys and settings
        _sh("mount", "-t", "tmpfs", "tmpfs", str(own))
    Path("/run/sshd").mkdir()


def _mount_sysfs() -> None:
    """Mount /sys anew: it shows the interfaces of the namespace that it was mounted in. The control groups stay."""
    groups, aside = Path("/sys/fs/cgroup"), Path("/run/cgroup")
    aside.mkdir()
    _sh("mount", "--rbind", str(groups), str(aside))
    _sh("mount", "-t", "sysfs", "sysfs", "/sys")
    _sh("mount", "--rbind", str(aside), str(groups))


def _start_sshd() -> None:
    subprocess.Popen(["/usr/sbin/sshd", "-D"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + _SSHD_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", 22)) == 0:
                return
        time.sleep(0.01)
    sys.exit(f"{socket.gethostname()}: sshd did not answer within {_SSHD_SECONDS:g} s")


def _sh(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
