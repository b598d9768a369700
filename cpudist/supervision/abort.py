"""End a rank of a failed job at once (under MPI by `MPI_Abort`), and the launcher's remaining processes.

After the link to another host is lost, Hydra's mpiexec and Open MPI's mpirun wait without a limit for a daemon that
they cannot reach, and the daemon waits for them. The ranks have ended by then. So each rank, before it ends, starts a
small process that gives the launcher some time to end and then kills it. This process is a shell, because Python may be
on a file system that is lost with the link.
"""

import _thread
import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections import defaultdict
from typing import NoReturn

from cpudist.launchers.mpis import MPIS
from cpudist.processes.ending import flush_output
from cpudist.processes.procfs import SSH_DAEMONS, Process, read_all

_ABORT_SECONDS = 3.0  # MPI_Abort may not return: exit after this time.
LAUNCHER_SECONDS = 8  # Time for the launcher to end the other ranks and itself.
_PROGRAMS = frozenset(program for mpi in MPIS for program in mpi.programs)
_DAEMONS = frozenset(daemon for mpi in MPIS for daemon in mpi.daemons)

# Arguments: seconds to wait, then processes as "id:start time". A new process with an old id has another start time.
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


def abort(status: int) -> NoReturn:
    """End this process without finalizers, which could wait for a lost peer; under MPI this ends the job."""
    try:
        flush_output()
        _kill_workers()
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            _abort_mpi(mpi, status)
    finally:
        os._exit(status)


def _kill_workers() -> None:
    """Kill data workers. They would exit by themselves after their parent, but not while a read hangs."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        if child.daemon:
            with contextlib.suppress(OSError):
                child.kill()


def _abort_mpi(mpi: object, status: int) -> None:
    # MPI_Abort may not return if the launcher cannot be reached. threading.Timer is avoided, because it takes a lock.
    _thread.start_new_thread(_exit_after, (_ABORT_SECONDS, status))
    end_launcher_after(LAUNCHER_SECONDS)
    # The reason is on screen by now. MPI's own lines, one for every rank that aborts, would hide it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    # Not mpi4py's Abort: it holds the GIL, so the timer could not end the process.
    world = mpi.COMM_WORLD  # type: ignore[attr-defined]
    handle = mpi._handleof(world)  # type: ignore[attr-defined]
    kind = ctypes.c_int if mpi._sizeof(world) == ctypes.sizeof(ctypes.c_int) else ctypes.c_void_p  # type: ignore[attr-defined]
    ctypes.CDLL(mpi.__file__).MPI_Abort(kind(handle), status)  # type: ignore[attr-defined]


def _exit_after(seconds: float, status: int) -> NoReturn:
    time.sleep(seconds)
    os._exit(status)


def end_launcher_after(seconds: int, agent: int | None = None) -> None:
    """End the launcher's processes on this host and their descendants if any still runs after `seconds`.

    Returns at once: a detached process waits, ends them, and exits as soon as none of them is left. It does not inherit
    the job's output, whose end a launcher may await. Does nothing if there is neither `agent` nor an MPI launcher.

    Args:
        seconds: how long the launcher may take to end by itself.
        agent: the launcher's process id; None: find an MPI launcher among this process's ancestors.
    """
    targets = [f"{process.pid}:{process.start}" for process in _left_by_launcher(read_all(), os.getpid(), agent)]
    if targets:
        subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "cpudist-leftovers", str(seconds), *targets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,  # launchers kill the session or process group of their ranks
        )


def _left_by_launcher(processes: dict[int, Process], pid: int, agent: int | None = None) -> list[Process]:
    """Return the launcher's processes above `pid` and all their descendants except `pid`, descendants first."""
    above = [processes[agent]] if agent in processes else _launchers_above(processes, pid)
    if not above:
        return []
    children = defaultdict(list)
    for process in processes.values():
        children[process.parent].append(process)
    top = next(process for process in reversed(above) if process.name not in SSH_DAEMONS)
    found = [top]
    for process in found:
        found += children[process.pid]
    # Keep an sshd that carries the user's own sessions too (ssh's ControlMaster).
    connections = [one for one in above if one.name in SSH_DAEMONS and set(children[one.pid]) <= set(found)]
    return [*(process for process in reversed(found) if process.pid != pid), *connections]


def _launchers_above(processes: dict[int, Process], pid: int) -> list[Process]:
    """Return the processes of the nearest launcher above `pid`, nearest first; wrappers may be in between."""
    above: list[Process] = []
    process = processes.get(pid)
    while process is not None and (process := processes.get(process.parent)) is not None:
        if process.name in _PROGRAMS | _DAEMONS:
            above.append(process)
        elif above and above[-1].name in _DAEMONS and process.name in SSH_DAEMONS:
            return [*above, process]  # after a lost link sshd would wait for its client for ever
        elif above and above[-1].name in _DAEMONS and (parent := processes.get(process.parent)) is not None:
            # sshd may have started the daemon through a shell.
            return [*above, process, parent] if parent.name in SSH_DAEMONS else above
        elif above:
            break
    return above
