"""Check all hosts of a job at once before any rank starts, and wait for hosts that are still starting."""

import asyncio
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, get_args

from cpudist import typed_json
from cpudist.checkpoints import folders
from cpudist.console import number_of, say, size
from cpudist.errors import UserError
from cpudist.findings import Finding, Level
from cpudist.hosts.connections import Trial, judge_networks, partners, unconnected
from cpudist.hosts.facts import Facts
from cpudist.hosts.remote import THIS_HOST, ask_all, ask_each, is_here, names, place, program_on, run_on, understood
from cpudist.launchers.mpi_launcher import Host
from cpudist.pinning.plan import Part
from cpudist.processes.procfs import python_main
from cpudist.topology.identity import INTERFACE_VARIABLES, addresses

_ANSWER_SECONDS = 60.0  # starting Python takes long on a busy host with a slow disk
_SKEW_SECONDS = 60.0
_UP_SECONDS = 20.0
_BETWEEN_SECONDS = 1.0
_DECISIVE = ("python", "cpudist", "torch")  # every job needs the same versions of these
_PARTS = {*get_args(Part), "default"}
_RANK_BYTES = 400 << 20  # a rank uses this much after it has imported torch and created its process group


@dataclass(frozen=True)
class Checked:
    """The result of a check: the facts of the hosts that answered, and the findings for every host.

    `interface` is the one network interface that connects all hosts, if another one fails; None: use any interface.
    """

    facts: dict[Host, Facts]
    findings: dict[Host, list[Finding]]
    interface: str | None = None

    def of_level(self, level: Level) -> list[Finding]:
        return [one for findings in self.findings.values() for one in findings if one.level == level]


def check_hosts(
    hosts: Sequence[Host], script: str = "", by_name: bool = True, shared: bool = False, interface: str | None = None
) -> Checked:
    """Check hosts in parallel; each host has a minute to answer.

    Args:
        hosts: the hosts to check. Each must have memory for `slots` ranks, or for one rank if `slots` is None.
        script: the job's script; empty where it has none.
        by_name: whether the hosts connect to this host by its name (`MpiLauncher.by_name`); otherwise by its addresses.
        shared: whether to check that the hosts share this process's working folder.
        interface: the network interface for all traffic, which this host must have; None: any.
    """
    here = Host("localhost", 0, THIS_HOST)
    starter = [socket.gethostname()] if by_name else addresses(interface)[: 1 if interface else None]
    path = [entry for entry in sys.path if entry]  # PYTHONPATH may be set on this host only
    with folders.probe(os.getcwd()) if shared else nullcontext("") as probe:
        words = [*python_main(Facts.__module__, path=path), os.getcwd(), script, probe, interface or ""]
        named = interface or any(map(os.environ.get, INTERFACE_VARIABLES))
        (reference, *answers), trials = asyncio.run(_ask_all([here, *hosts], words, starter, not named))
    if isinstance(reference, Finding):
        return Checked({}, {here: [reference]})
    facts: dict[Host, Facts] = {}
    findings: dict[Host, list[Finding]] = {host: [] for host in hosts}
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, Finding):
            findings[host] = [answer]
            continue
        findings[host] = [*_judge(host, answer, reference, script), *_same_machine(host, answer, facts)]
        facts[host] = answer
    for host, finding in _unlike(facts):
        findings[host].append(finding)
    failed = {(trial.source, trial.target): trial.error for trial in trials if trial.error and not trial.interface}
    for host, finding in unconnected(failed, [here, *hosts]):
        findings[host].append(finding)
    if failed:  # no network can be judged where the usual addresses do not connect
        return Checked(facts, findings)
    findings[here], only = judge_networks([trial for trial in trials if trial.interface])
    return Checked(facts, findings, only)


def wait_for(hosts: Sequence[Host], seconds: float) -> None:
    """Wait until hosts such as pods accept ssh and resolve this host's name; `UserError` after `seconds`."""
    deadline = time.monotonic() + seconds
    missing, said = list(hosts), False
    while True:
        troubles = ask_all(missing, _why_not_up)
        missing = [host for host, trouble in zip(missing, troubles, strict=True) if trouble]
        if not missing:
            return
        if time.monotonic() + _BETWEEN_SECONDS > deadline:
            raise UserError("\n".join(f"after {seconds:g} s, {trouble}" for trouble in troubles if trouble))
        if not said:
            said = True
            say(f"waiting up to {seconds:g} s for {names(missing)}")
        time.sleep(_BETWEEN_SECONDS)


async def _why_not_up(host: Host) -> str:
    """Return why a host is not up, or "". A host that is up also resolves this host's name, for Hydra's proxies."""
    if await asyncio.to_thread(is_here, host.name):
        return ""
    own = socket.gethostname()
    look_up = f"getent hosts {shlex.quote(own)} > /dev/null || echo unknown"
    answer = await run_on(host, ["sh", "-c", look_up], _UP_SECONDS)
    if isinstance(answer, Finding):
        return answer.line
    if "unknown" in answer:
        return f"{place(host)} cannot resolve the name {own}; add it to DNS or to /etc/hosts there"
    return ""


async def _ask_all(
    hosts: Sequence[Host], words: Sequence[str], starter: Sequence[str], networks: bool
) -> tuple[list[Facts | Finding], list[Trial]]:
    """Ask hosts for their facts, then let them connect to each other. The first is this host, reached at `starter`.

    With `networks`, if any host has several network interfaces, the hosts also try every interface's address. Return
    the facts or an error of each host, and the trials.
    """
    async with AsyncExitStack() as stack:
        talks = {}

        async def ask(host: Host) -> Facts | Finding:
            talks[host] = await stack.enter_async_context(program_on(host, words, _ANSWER_SECONDS))
            before = time.time()
            answer = await talks[host]()
            after = time.time()
            return understood(host, answer, lambda fields: _facts(fields, before, after))

        found = await ask_each(hosts, ask, f"checking {number_of(len(hosts) - 1, 'host')}")
        machines: dict[str, tuple[Host, Facts]] = {}
        for host, one in zip(hosts, found, strict=True):
            if isinstance(one, Facts) and one.address:
                machines.setdefault(one.identity, (host, one))
        nodes, trials = dict(machines.values()), list[Trial]()
        several = networks and any(len(one.networks) > 1 for one in nodes.values())
        order = list(nodes)

        def ways(host: Host) -> list[tuple[str, Sequence[str]]]:
            """Return where others try to reach a host, as (interface, addresses); ("", …) are its usual addresses."""
            usual = starter if host == hosts[0] else [nodes[host].address]
            return [("", usual), *((name, [one]) for name, one in nodes[host].networks.items() if several)]

        async def connect(host: Host) -> None:
            others = [order[number] for number in partners(order.index(host), len(order))]
            ends = [(other, name, where) for other in others for name, where in ways(other)]
            asked = json.dumps([[where, nodes[other].port] for other, _, where in ends])
            answer = understood(host, await talks[host](asked), lambda fields: _errors(fields, len(ends)))
            if isinstance(answer, Finding):
                found[hosts.index(host)] = answer
            else:
                trials.extend(Trial(host, *end[:2], error) for end, error in zip(ends, answer, strict=True))

        if hosts[0] in nodes:  # this host connects to the others only if it has ranks
            own = nodes[hosts[0]].identity
            among = any(isinstance(one, Facts) and one.identity == own for one in found[1:])
            await ask_each(order[not among :], connect, "connecting every pair of hosts")
    return found, trials


def _facts(fields: Any, before: float, after: float) -> Facts:
    """Return a host's facts, or raise ValueError; `before` and `after`: this host's time around its answer."""
    found = typed_json.read(Facts, fields)
    if not found.ranks.keys() >= _PARTS or min(found.ranks.values()) < 1:
        raise ValueError("the numbers of ranks are incomplete")
    return replace(found, skew=min(found.seconds - before, 0.0) or max(found.seconds - after, 0.0))


def _errors(fields: Any, count: int) -> list[str]:
    """Return why each of `count` connections failed, empty where it succeeded, or raise ValueError."""
    errors = typed_json.read(list[str], fields)
    if len(errors) != count:
        raise ValueError("the number of connections is wrong")
    return errors


def _judge(host: Host, found: Facts, reference: Facts, script: str = "") -> list[Finding]:
    findings = [replace(one, about=place(host), message=f"has {one.message}") for one in found.findings]

    def wrong(level: Level, message: str, remedy: str) -> None:
        findings.append(Finding(level, place(host), message, remedy))

    for name, ours in reference.versions.items():
        theirs = found.versions.get(name)
        if theirs != ours:
            has = f"has {name} {theirs}" if theirs else f"has no {name}"
            level: Level = "error" if name in _DECISIVE else "warning"
            wrong(level, f"{has}, this host {ours or 'none'}", "install the same version on all hosts")
    if not found.folder:
        wrong("error", f"has no folder {os.getcwd()}", "start from a folder that all hosts share, or make it there")
    elif reference.script not in (None, found.script):
        what = f"no {script}" if found.script is None else f"another {script} than this host"
        wrong("error", f"has {what}", "copy this host's to it, or start from a folder that all hosts share")
    elif not found.shared:
        message = f"has a folder {os.getcwd()} of its own: checkpoints need one that all hosts share"
        wrong("warning", message, "share one by NFS, or save in a folder that is shared")
    if abs(found.skew) > _SKEW_SECONDS:
        wrong("warning", f"has a clock that is {found.skew:+.0f} s off ours", "synchronise: apt-get install chrony")
    needed = _RANK_BYTES * (host.slots or 1)
    if found.memory < needed:
        wrong(
            "error",
            f"has {size(found.memory)} of free memory, but {host.slots or 1} ranks need at least {size(needed)}",
            "end what uses it, or start fewer ranks there",
        )
    return findings


def _unlike(facts: dict[Host, Facts]) -> Iterator[tuple[Host, Finding]]:
    """Yield a warning for each host whose cores per rank differ from most other hosts'."""
    cores = {host: found.cores / (host.slots or found.ranks["default"]) for host, found in facts.items()}
    usual = max(cores.values(), key=lambda one: (list(cores.values()).count(one), one), default=0.0)
    for host, own in cores.items():
        if own != usual:
            message = f"has {own:.3g} of its cores for each rank, other hosts {usual:.3g}: ranks with more cores wait"
            remedy = "give it slots in proportion to its cores, or see what limits them: cpudist doctor there"
            yield host, Finding("warning", place(host), message, remedy)


def _same_machine(host: Host, found: Facts, others: dict[Host, Facts]) -> Iterator[Finding]:
    other = next((other for other, facts in others.items() if facts.identity == found.identity), None)
    if other is not None:
        remedy = f"name it once, with all its ranks: {other.name} slots=2"
        yield Finding("error", place(host), f"is the same machine as {other.name}", remedy)
