"""Run a job on its hosts: place the ranks, check the hosts, start the job, restart it after a failure."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cpudist.console import say
from cpudist.errors import FAILED, USER_ERROR, UserError
from cpudist.hosts.check import Checked, check, wait_for
from cpudist.hosts.hostfile import spread, write
from cpudist.hosts.remote import names
from cpudist.hosts.restarts import Restarts
from cpudist.hosts.supervise import JobExit, supervise
from cpudist.launchers.mpi_launcher import Host, Mpirun, MpirunOptions
from cpudist.lost_ranks import JOB_ID
from cpudist.topology.pinning_plan import Part

RESTART_COUNT, OUTPUT = "CPUDIST_RESTART_COUNT", "CPUDIST_OUTPUT"
RUN_ID = "CPUDIST_RUN_ID"  # the same for all attempts; the user, or a pod, may have set it

_CHECKPOINT = "--checkpoint-on-signal"


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `cpudist launch`.

    Attributes:
        hosts: the hosts of the hostfile; None: this host.
        script: the script among them, which all hosts must have; empty where the target is no script.
        ranks: the number of all ranks; None: as many as the hosts take.
        per_host: ranks on each host, or one for each part of it; None: as the hostfile says, otherwise the fastest
            number that `cpudist plan --measure` has found there, otherwise one for each NUMA node.
        interface: the network interface for all traffic; None: each library chooses.
        max_restarts: how many failures within a day are followed by a restart.
        min_nodes: restart with no fewer hosts; None: with no fewer than at first.
        wait: seconds to wait for hosts that are still starting.
        grace: seconds that ranks get to save a checkpoint after a signal.
        by_name: whether mpirun's processes connect to this host by its name; `run` finds out.
    """

    hosts: Sequence[Host] | None
    arguments: Sequence[str]
    script: str = ""
    ranks: int | None = None
    per_host: int | Part | None = None
    interface: str | None = None
    all_output: bool = False
    max_restarts: int = 0
    min_nodes: int | None = None
    wait: int = 0
    grace: int = 60
    by_name: bool = True


def run(mpirun: Mpirun, options: LaunchOptions, variables: Mapping[str, str] = os.environ) -> int:
    """Run the job to its end, with restarts; return the exit status of the command.

    Raises:
        UserError: the hosts are not usable; raised before any rank starts.
    """
    options = replace(options, by_name=mpirun.mpi.by_name and options.interface is None)
    hosts, restarts = options.hosts or [_this_host()], Restarts(options.max_restarts)
    variables = {**variables, RUN_ID: variables.get(RUN_ID) or uuid.uuid4().hex}
    if options.wait:
        wait_for(hosts, options.wait)
    placed = _place(options, hosts)
    least = len(placed) if options.min_nodes is None else options.min_nodes
    output_lost = False
    while True:
        restarts.begin()
        try:
            job = _run_once(mpirun, options, placed, restarts.count, variables)
        except UserError as error:  # a host passed its check, but its agent did not start
            if restarts.count == 0:
                raise
            job = JobExit(FAILED, reason=str(error))
        output_lost = output_lost or job.output_lost
        if job.reason and job.status:
            say(f"the job failed: {job.reason} (exit status {job.status})")
        elif job.reason:
            say(f"warning: {job.reason}")
        by_user = job.status == USER_ERROR and not job.reason  # a restart would fail in the same way
        if job.status == 0 or job.stopped or by_user or not restarts.after_failure():
            return job.status or FAILED * output_lost
        restarts.leave_out(job.suspect, hosts, least)
        kept = [host for host in hosts if host not in restarts.left_out]
        # Hosts that are away may come back, as after a power cut.
        while len(answering := _answering(kept, checked := _check(options, kept))) < least:
            say(f"{len(answering)} of {len(hosts)} hosts can be used, fewer than {least} (--min-nodes)")
            if not restarts.after_failure():
                return job.status
            restarts.begin()
        placed = _as_many_as_fit(options, answering, checked)
        say(f"starting again ({restarts.number}) with {_count(placed)} ranks on {names(placed)}")


def show(mpirun: Mpirun, options: LaunchOptions, variables: Mapping[str, str] = os.environ) -> str:
    """Return what `run` would do, as lines for a shell. The hosts are asked only where `--ppn` is a part of a host.

    Raises:
        UserError: the ranks do not fit on the hosts.
    """
    placed = _spread(options, options.hosts or [_this_host()])
    file = None if options.hosts is None else "cpudist-hostfile"
    command = mpirun.command(_mpirun_options(options, placed, file, {**variables, **_own_variables(options)}))
    lines = []
    if file is not None:
        lines.append(f"cat > {file} <<'END'\n{write(placed, mpirun.mpi)}END")
    words = [f"{name}={shlex.quote(value)}" for name, value in _own_variables(options).items()]
    lines.append(" ".join([*words, shlex.join(command)]))
    return "\n".join(lines)


def _check(options: LaunchOptions, hosts: Sequence[Host]) -> Checked:
    return check(hosts, options.script, options.by_name, interface=options.interface)


def _require_all(checked: Checked) -> None:
    """Print the warnings of a check.

    Raises:
        UserError: there are errors; one line for each.
    """
    for finding in checked.of_level("warning"):
        say(f"warning: {finding.line}")
    if errors := checked.of_level("error"):
        raise UserError("\n".join(finding.line for finding in errors))


def _place(options: LaunchOptions, hosts: Sequence[Host]) -> list[Host]:
    """Return the hosts that get ranks, once they have been checked."""
    placed = _spread(options, hosts)
    if options.hosts is not None and (isinstance(options.per_host, int) or all(host.slots for host in hosts)):
        _require_all(_check(options, placed))  # otherwise `_spread` has checked all hosts
    return placed


def _spread(options: LaunchOptions, hosts: Sequence[Host], checked: Checked | None = None) -> list[Host]:
    if isinstance(options.per_host, int):
        return spread(hosts, options.ranks, options.per_host)
    if options.hosts is None and options.ranks and options.per_host is None:
        return [replace(hosts[0], slots=options.ranks)]
    if options.per_host is None and all(host.slots for host in hosts):
        return spread(hosts, options.ranks)
    if checked is None:
        checked = _check(options, hosts)
        _require_all(checked)
    return spread([_with_slots(host, checked, options.per_host) for host in hosts], options.ranks)


def _with_slots(host: Host, checked: Checked, part: Part | int | None) -> Host:
    """Return a host with as many slots as its plan has ranks; the hostfile may not say fewer."""
    assert not isinstance(part, int)
    if part is None and host.slots is not None:
        return host
    ranks = checked.facts[host].ranks[part or "default"]
    if host.slots is not None and ranks > host.slots:
        raise UserError(
            f"{host.where}: {host.name} takes {host.slots} ranks, and --ppn {part} makes {ranks}; change one of them"
        )
    return replace(host, slots=ranks)


def _answering(hosts: Sequence[Host], checked: Checked) -> list[Host]:
    for finding in checked.of_level("error"):
        say(f"warning: going on without {finding.line}")
    return [host for host in hosts if all(finding.level != "error" for finding in checked.findings.get(host, ()))]


def _as_many_as_fit(options: LaunchOptions, hosts: Sequence[Host], checked: Checked) -> list[Host]:
    """Spread the requested ranks over the hosts, or as many of them as these take."""
    if options.hosts is None:
        return _spread(options, hosts, checked)
    room = _count(_spread(replace(options, ranks=None), hosts, checked))
    return _spread(replace(options, ranks=min(options.ranks or room, room)), hosts, checked)


def _run_once(
    mpirun: Mpirun, options: LaunchOptions, placed: Sequence[Host], restarts: int, variables: Mapping[str, str]
) -> JobExit:
    own = {**variables, **_own_variables(options), JOB_ID: uuid.uuid4().hex, RESTART_COUNT: str(restarts)}
    grace = options.grace if _CHECKPOINT in options.arguments else None
    with ExitStack() as stack:
        file = None if options.hosts is None else stack.enter_context(_hostfile(placed, mpirun))
        command = mpirun.command(_mpirun_options(options, placed, file, own))
        return supervise(mpirun.mpi, command, own, placed, grace)


def _own_variables(options: LaunchOptions) -> dict[str, str]:
    return {OUTPUT: "all" if options.all_output else "rank0"}


def _mpirun_options(
    options: LaunchOptions, placed: Sequence[Host], file: str | None, variables: Mapping[str, str]
) -> MpirunOptions:
    program = Path(sys.executable).with_name("cpudist-train")
    if not program.exists():
        raise UserError(f"{program} is missing; install cpudist in this environment: pip install cpudist")
    interface = [] if options.interface is None else ["--interface", options.interface]
    words = [str(program), *interface, *options.arguments]
    return MpirunOptions(_count(placed), words, file, tuple(variables), options.interface, options.all_output)


@contextmanager
def _hostfile(hosts: Sequence[Host], mpirun: Mpirun) -> Iterator[str]:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        raise UserError("no folder for temporary files can be written; set TMPDIR to one") from None
    with tempfile.NamedTemporaryFile("w", prefix="cpudist-hosts-", dir=folder) as file:
        file.write(write(hosts, mpirun.mpi))
        file.flush()
        yield file.name


def _this_host() -> Host:
    return Host("localhost", where="this host")


def _count(hosts: Sequence[Host]) -> int:
    return sum(host.slots or 0 for host in hosts)
