"""Runs a job on its hosts: decides who runs where, checks, starts, and starts again after a failure."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cpudist.console import say
from cpudist.errors import USER_ERROR, UserError
from cpudist.launch.attempt import Outcome, attempt
from cpudist.launch.check import Checked, check
from cpudist.launch.hostfile import Host, spread, write
from cpudist.launch.launchers import Launcher, Start, find_launcher
from cpudist.launch.wait import wait_for
from cpudist.placement.plan import Part

JOB_ID, RESTART_COUNT, OUTPUT = "CPUDIST_JOB_ID", "CPUDIST_RESTART_COUNT", "CPUDIST_OUTPUT"

_CHECKPOINT = "--checkpoint-on-signal"


@dataclass(frozen=True)
class Wishes:
    """What the user has asked for.

    Attributes:
        hosts: those of the hostfile; None: this host.
        ranks: the number of all ranks; None: as many as there is room for.
        per_host: ranks on each host, or one for each part of it; None: what the hostfile says, else one for each NUMA
            node.
        mpi: "auto", "intel", "mpich" or "openmpi".
        arguments: of cpudist-train.
        interface: the network interface for everything; None: each library chooses.
        all_output: whether the output of all ranks is shown, each line with its rank.
        max_restarts: how often to start again after a failure.
        min_nodes: with how many hosts to be content then; None: with no fewer than at first.
        wait: how many seconds hosts may take to be there at all.
        grace: how many seconds ranks may take to save a checkpoint on a signal.
    """

    hosts: Sequence[Host] | None
    arguments: Sequence[str]
    ranks: int | None = None
    per_host: int | Part | None = None
    mpi: str = "auto"
    interface: str | None = None
    all_output: bool = False
    max_restarts: int = 0
    min_nodes: int | None = None
    wait: int = 0
    grace: int = 60


def run(wishes: Wishes, variables: Mapping[str, str] = os.environ) -> int:
    """Run the job to its end, with restarts where asked for; returns the exit status for the command.

    Raises:
        UserError: something is wrong that was found before any rank started.
    """
    launcher = find_launcher(wishes.mpi, variables)
    hosts, restarts = wishes.hosts or [_this_host()], 0
    if wishes.wait:
        wait_for(hosts, wishes.wait)
    placed = _place(wishes, hosts)
    least = len(placed) if wishes.min_nodes is None else wishes.min_nodes
    while True:
        outcome = _attempt(launcher, wishes, placed, restarts, variables)
        if outcome.reason and outcome.status:
            say(f"the job failed: {outcome.reason} (exit status {outcome.status})")
        elif outcome.reason:
            say(f"warning: {outcome.reason}")
        if outcome.status == 0 or outcome.stopped:
            return outcome.status
        mistake = outcome.status == USER_ERROR and not outcome.reason
        if mistake or restarts == wishes.max_restarts:
            return outcome.status
        restarts += 1
        checked = check(hosts)
        answering = _answering(hosts, checked)
        if len(answering) < least:
            say(
                f"not starting again: {len(answering)} of {len(hosts)} hosts are left, fewer than {least} (--min-nodes)"
            )
            return outcome.status
        placed = _as_many_as_fit(wishes, answering, checked)
        say(f"starting again ({restarts} of {wishes.max_restarts}) with {_ranks(placed)} ranks on {_names(placed)}")


def show(wishes: Wishes, variables: Mapping[str, str] = os.environ) -> str:
    """Return what `run` would do as lines for a shell; the hosts are asked only where `--ppn` leaves no other way.

    Raises:
        UserError: as `run`, but for what checking the hosts would find.
    """
    launcher = find_launcher(wishes.mpi, variables)
    placed = _spread(wishes, wishes.hosts or [_this_host()])
    file = None if wishes.hosts is None else "cpudist-hostfile"
    command = launcher.command(_start(wishes, placed, file, {**variables, **_own_variables(wishes)}))
    lines = []
    if file is not None:
        lines.append(f"cat > {file} <<'END'\n{write(placed, launcher.mpi)}END")
    words = [f"{name}={shlex.quote(value)}" for name, value in _own_variables(wishes).items()]
    lines.append(" ".join([*words, shlex.join(command)]))
    return "\n".join(lines)


def require_all(checked: Checked) -> None:
    """Warn of what is not as it should be.

    Raises:
        UserError: a job would fail; all that is wrong on all hosts, one line each.
    """
    for trouble in checked.troubles:
        if trouble.level == "warning":
            say(f"warning: {trouble}")
    if checked.errors:
        raise UserError("\n".join(map(str, checked.errors)))


def _place(wishes: Wishes, hosts: Sequence[Host]) -> list[Host]:
    """Who runs where, on hosts that have been checked."""
    if wishes.hosts is None:
        return _spread(wishes, hosts)
    if isinstance(wishes.per_host, int) or all(host.slots for host in hosts):
        placed = _spread(wishes, hosts)  # hosts that get no ranks may be in any state
        require_all(check(placed))
        return placed
    return _spread(wishes, hosts)


def _spread(wishes: Wishes, hosts: Sequence[Host], checked: Checked | None = None) -> list[Host]:
    if isinstance(wishes.per_host, int):
        return spread(hosts, wishes.ranks, wishes.per_host)
    if wishes.hosts is None and wishes.ranks and wishes.per_host is None:
        return [replace(hosts[0], slots=wishes.ranks)]
    if wishes.per_host is None and all(host.slots for host in hosts):
        return spread(hosts, wishes.ranks)
    if checked is None:
        checked = check(hosts)
        require_all(checked)
    return spread([_with_slots(host, checked, wishes.per_host) for host in hosts], wishes.ranks)


def _with_slots(host: Host, checked: Checked, part: Part | int | None) -> Host:
    """A host with as many ranks as its plan has, which has to fit what the file says."""
    assert not isinstance(part, int)
    if part is None and host.slots is not None:
        return host
    ranks = checked.facts[host].ranks[part or "numa"]
    if host.slots is not None and ranks > host.slots:
        raise UserError(
            f"{host.where}: {host.name} takes {host.slots} ranks, and --ppn {part} makes {ranks}; change one of them"
        )
    return replace(host, slots=ranks)


def _answering(hosts: Sequence[Host], checked: Checked) -> list[Host]:
    for trouble in checked.errors:
        say(f"warning: going on without {trouble}")
    failing = {trouble.host for trouble in checked.errors}
    return [host for host in hosts if host not in failing]


def _as_many_as_fit(wishes: Wishes, hosts: Sequence[Host], checked: Checked) -> list[Host]:
    """Of the ranks that were wished for, those for which there is room."""
    if wishes.hosts is None:
        return _spread(wishes, hosts, checked)
    room = _ranks(_spread(replace(wishes, ranks=None), hosts, checked))
    return _spread(replace(wishes, ranks=min(wishes.ranks or room, room)), hosts, checked)


def _attempt(
    launcher: Launcher, wishes: Wishes, placed: Sequence[Host], restarts: int, variables: Mapping[str, str]
) -> Outcome:
    own = {**variables, **_own_variables(wishes), JOB_ID: uuid.uuid4().hex, RESTART_COUNT: str(restarts)}
    grace = wishes.grace if _CHECKPOINT in wishes.arguments else None
    with _hostfile(placed, launcher) if wishes.hosts is not None else _no_hostfile() as file:
        return attempt(launcher, launcher.command(_start(wishes, placed, file, own)), own, placed, grace)


def _own_variables(wishes: Wishes) -> dict[str, str]:
    return {OUTPUT: "all" if wishes.all_output else "rank0"}


def _start(wishes: Wishes, placed: Sequence[Host], file: str | None, variables: Mapping[str, str]) -> Start:
    program = Path(sys.executable).with_name("cpudist-train")
    if not program.exists():
        raise UserError(f"{program} is missing; install cpudist in this environment: pip install cpudist")
    interface = [] if wishes.interface is None else ["--interface", wishes.interface]
    words = [str(program), *interface, *wishes.arguments]
    return Start(placed, file, words, tuple(variables), wishes.interface, wishes.all_output)


@contextmanager
def _hostfile(hosts: Sequence[Host], launcher: Launcher) -> Iterator[str | None]:
    with tempfile.NamedTemporaryFile("w", prefix="cpudist-hosts-") as file:
        file.write(write(hosts, launcher.mpi))
        file.flush()
        yield file.name


@contextmanager
def _no_hostfile() -> Iterator[str | None]:
    yield None


def _this_host() -> Host:
    return Host("localhost", where="this host")


def _ranks(hosts: Sequence[Host]) -> int:
    return sum(host.slots or 0 for host in hosts)


def _names(hosts: Sequence[Host]) -> str:
    return ", ".join(host.name for host in hosts)
