"""Ends what a launcher leaves on this host when a job has failed and the way to another host is lost.

Hydra's mpiexec and Open MPI's mpirun wait for ever for a daemon that they cannot reach, and that daemon, on its side,
for them. The ranks have ended by then, so the last thing that a rank does is to leave a small process behind, which
gives the launcher a while and then ends it. That process is a shell: Python and all else that a job uses may lie on a
file system that has gone with the link.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

# What stands between a user's command and the ranks. The first ones are often shell scripts.
_COMMANDS = frozenset(
    [
        *("mpirun", "mpiexec"),
        *("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"),  # Intel MPI, MPICH
        *("mpirun.openmpi", "mpiexec.openmpi", "orterun", "prterun"),  # Open MPI up to 4, from 5 on
    ]
)
_DAEMONS = frozenset(("hydra_bstrap_proxy", "hydra_pmi_proxy", "pmi_proxy", "orted", "prted"))
_SHELLS = frozenset(("sh", "dash", "bash"))
_SSHD = ("sshd", "sshd-session")

# Arguments: seconds to wait, then processes as "id:start time", so that a new one with an old id is never hit.
_SCRIPT = """
alive() {
  stat=$(cat "/proc/${1%:*}/stat" 2>/dev/null) || return 1
  set -- "${1#*:}" ${stat##*) }
  [ "$2" != Z ] && [ "${21}" = "$1" ]
}
wait_for_all() {
  halves=$1; shift
  for process; do
    while alive "$process"; do
      [ "$halves" -gt 0 ] || return 0
      sleep 0.5; halves=$((halves - 1))
    done
  done
}
send() {
  signal=$1; shift
  for process; do alive "$process" && kill "-$signal" "${process%:*}"; done
}
halves=$(($1 * 2)); shift
wait_for_all $halves "$@"
send TERM "$@"; wait_for_all 4 "$@"; send KILL "$@"
"""


class _Process(NamedTuple):
    pid: int
    parent: int
    start: str  # in the kernel's ticks since boot
    name: str


def end_launcher_after(seconds: int) -> None:
    """End the launcher's processes on this host, and what they have started, if they are still there after `seconds`.

    This returns at once; a detached process does it, which ends as soon as nothing is left to do. It gets no output
    of the job's, so nobody waits for it. Without an MPI launcher above this process there is nothing to do.
    """
    targets = [f"{process.pid}:{process.start}" for process in _left_by_launcher(_processes(), os.getpid())]
    if targets:
        subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "cpudist-leftovers", str(seconds), *targets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,  # launchers kill their ranks by session or group
        )


def _left_by_launcher(processes: dict[int, _Process], pid: int) -> list[_Process]:
    """The launcher's processes above `pid`, and all that hangs on them but `pid` itself; the lowest first."""
    above = _launchers_above(processes, pid)
    if not above:
        return []
    children = defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process)
    top = next(process for process in reversed(above) if process.name not in _SSHD)
    found = [top]
    for process in found:
        found += children[process.pid]
    # One connection may carry the user's own sessions too (ssh's ControlMaster); then it stays.
    connections = [process for process in above if process.name in _SSHD and set(children[process.pid]) <= set(found)]
    return [*(process for process in reversed(found) if process.pid != pid), *connections]


def _launchers_above(processes: dict[int, _Process], pid: int) -> list[_Process]:
    """The nearest launcher's processes among the parents of `pid`, which may have a wrapper between, lowest first."""
    above: list[_Process] = []
    process = processes.get(pid)
    while process is not None and (process := processes.get(process.parent)) is not None:
        if process.name in _COMMANDS | _DAEMONS:
            above.append(process)
        elif above and above[-1].name in _DAEMONS and process.name in _SSHD:
            return [*above, process]  # it has started this daemon and would wait for the lost host
        elif above:
            break
    return above


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(entry.name)] = _Process(int(entry.name), int(fields[1]), fields[19], _name(entry))
            except OSError:  # it has ended meanwhile
                continue
    return found


def _name(process: Path) -> str:
    """What a process runs: its program's name, or its script's where a shell runs one."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    first = os.path.basename(words[0].partition(":")[0])  # "sshd: user@notty"
    return os.path.basename(words[1]) if first in _SHELLS and len(words) > 1 else first
