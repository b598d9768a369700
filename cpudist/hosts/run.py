"""Run a job on its hosts: start it as `HostPlan` places its ranks, and restart it after a failure."""

import os
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from cpudist.console import say
from cpudist.errors import FAILED, USER_ERROR, UserError
from cpudist.hosts.host_plan import HostPlan, LaunchOptions, number_of_ranks
from cpudist.hosts.hostfile import shares, write
from cpudist.hosts.remote import names
from cpudist.hosts.supervise import JobExit, supervise
from cpudist.launchers.mpi_launcher import Host, Mpirun, MpirunOptions
from cpudist.processes.attempt import EARLIER_SECONDS, JOB_ID, OUTPUT, RESTART_COUNT, RUN_ID, SHARES
from cpudist.processes.procfs import own_age
from cpudist.script import long_arguments
from cpudist.topology.identity import addresses, resolved

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 300.0  # the pause doubles between these bounds
_LONG_ATTEMPT_SECONDS = 120.0
_WINDOW_SECONDS = 86_400.0  # older failures are ignored


def run_job(mpirun: Mpirun, options: LaunchOptions) -> int:
    """Run the job to its end, with restarts; return the exit status. Hosts that cannot be used are a `UserError`."""
    plan, restarts = HostPlan(options, mpirun.mpi), Restarts(options.max_restarts)
    variables = {**os.environ, **_own_variables(options), RUN_ID: os.environ.get(RUN_ID) or uuid.uuid4().hex}
    placed = plan.start()
    least = len(placed) if options.min_nodes is None else options.min_nodes
    output_lost = False
    while True:
        restarts.begin()
        try:
            job = _run_once(mpirun, replace(options, interface=plan.interface), placed, restarts.count, variables)
        except UserError as error:  # a host passed its check, but its agent did not start
            if restarts.count == 0:
                raise
            job = JobExit(FAILED, reason=str(error))
        output_lost = output_lost or job.output_lost
        if job.stopped and job.reason:
            say(f"the job was {job.reason}")
        elif job.reason and job.status:
            say(f"the job failed: {job.reason} (exit status {job.status})")
        elif job.reason:
            say(f"warning: {job.reason}")
        by_user = job.status == USER_ERROR and not job.reason  # a restart would fail in the same way
        if job.status == 0 or job.stopped or by_user or not restarts.after_failure():
            return job.status or FAILED * output_lost
        restarts.leave_out(job.suspect, plan.hosts, least)
        # Unreachable hosts may come back, for example after a power cut.
        while len(usable := plan.usable(restarts.left_out)) < least:
            say(f"{len(usable)} of {len(plan.hosts)} hosts can be used, fewer than {least} (--min-nodes)")
            if not restarts.after_failure():
                return job.status
            restarts.begin()
        placed = plan.restart(usable)
        say(f"starting again ({restarts.number}) with {number_of_ranks(placed)} ranks on {names(placed)}")


def show(mpirun: Mpirun, options: LaunchOptions) -> str:
    """Return shell commands that start the job as `run_job` does. Ask hosts only for unknown numbers of ranks."""
    plan, own = HostPlan(options, mpirun.mpi), _own_variables(options)
    placed = plan.spread()
    options = replace(options, interface=plan.interface)
    file = None if options.hosts is None else "cpudist-hostfile"
    command = shlex.join(mpirun.command(_mpirun_options(options, placed, file, {**os.environ, **own})))
    line = " ".join([*(f"{name}={shlex.quote(value)}" for name, value in own.items()), command])
    return line if file is None else f"cat > {file} <<'END'\n{write(placed, mpirun.mpi)}END\n{line}"


def _run_once(
    mpirun: Mpirun, options: LaunchOptions, placed: Sequence[Host], restarts: int, variables: Mapping[str, str]
) -> JobExit:
    own = {**variables, JOB_ID: uuid.uuid4().hex, RESTART_COUNT: str(restarts)}
    slots = [host.slots or 1 for host in placed]
    if found := shares(placed):
        own[SHARES] = ",".join(str(share / n) for share, n in zip(found, slots, strict=True) for _ in range(n))
    own[EARLIER_SECONDS] = str(own_age()) if restarts else "0"
    with ExitStack() as stack:
        file = None if options.hosts is None else stack.enter_context(_hostfile(placed, mpirun))
        command = mpirun.command(_mpirun_options(options, placed, file, own))
        return supervise(mpirun.mpi, command, own, placed, options.grace if options.saves else None)


def _own_variables(options: LaunchOptions) -> dict[str, str]:
    return {OUTPUT: "all" if options.all_output else "rank0", **long_arguments.variables(options.arguments)}


def _mpirun_options(
    options: LaunchOptions, placed: Sequence[Host], file: str | None, variables: Mapping[str, str]
) -> MpirunOptions:
    program = Path(sys.executable).with_name("cpudist-train")
    if not program.exists():
        raise UserError(f"{program} is missing; install cpudist in this environment: pip install cpudist")
    interface = [] if options.interface is None else ["--interface", options.interface]
    words = [str(program), *interface, *([] if long_arguments.VARIABLE in variables else options.arguments)]
    own = addresses(options.interface) if options.interface else resolved(socket.gethostname())
    only_ipv6 = file is not None and bool(own) and all(":" in address for address in own)
    slots = [host.slots or 0 for host in placed]
    return MpirunOptions(
        number_of_ranks(placed), words, file, slots, tuple(variables), options.interface, options.all_output, only_ipv6
    )


@contextmanager
def _hostfile(hosts: Sequence[Host], mpirun: Mpirun) -> Iterator[str]:
    """Yield the path of a hostfile in memory, which is gone even if this process is killed."""
    with open(os.memfd_create("hosts"), "w") as file:
        file.write(write(hosts, mpirun.mpi))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


class Restarts:
    """The restarts of one job, of which `most` are allowed within a day."""

    def __init__(self, most: int) -> None:
        self.count = 0  # restarts so far, counting those that too few hosts prevented
        self.left_out: list[Host] = []  # the hosts that get no ranks any more
        self._most = most
        self._failures: list[float] = []
        self._suspect: Host | None = None
        self._pause = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def after_failure(self) -> bool:
        """Return whether another attempt is allowed; first wait 0 s, 5 s, 10 s, … 300 s if it is.

        After an attempt of more than two minutes the pauses begin again at 0 s.
        """
        now = time.monotonic()
        self._failures = [*(moment for moment in self._failures if now - moment < _WINDOW_SECONDS), now]
        if len(self._failures) > self._most:
            if self._most:
                say(f"not starting again: {len(self._failures)} failures within a day (--max-restarts {self._most})")
            return False
        self.count += 1
        if now - self._began > _LONG_ATTEMPT_SECONDS:
            self._pause = 0.0
        if self._pause:
            say(f"starting again in {self._pause:g} s")
        time.sleep(self._pause)
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        return True

    @property
    def number(self) -> str:
        """The number of this restart within a day and the limit, such as "1 of 3"."""
        return f"{len(self._failures)} of {self._most}"

    def leave_out(self, suspect: Host | None, hosts: Sequence[Host], least: int) -> None:
        """Leave out the suspect of two failures in a row if at least `least` of the job's `hosts` remain."""
        twice = suspect is not None and self._suspect is not None and suspect.name == self._suspect.name
        self._suspect = suspect
        host = next((host for host in hosts if suspect is not None and host.name == suspect.name), None)
        if not twice or host is None or host in self.left_out:
            return
        left = len(hosts) - len(self.left_out) - 1
        if left < least:
            say(f"{host.name} failed twice in a row, but stays: without it {left} hosts are left (--min-nodes {least})")
            return
        self.left_out.append(host)
        say(f"warning: going on without {host.where}: {host.name}, which failed twice in a row")
