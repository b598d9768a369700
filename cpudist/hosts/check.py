"""Check all hosts of a job at once before any rank starts, and wait for hosts that are still starting."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, get_args

from cpudist import answers
from cpudist.checkpoints import folders
from cpudist.console import number_of, say, size
from cpudist.errors import Finding, Level, UserError
from cpudist.hosts.remote import ask_all, is_here, names, place, run_on, understood
from cpudist.launchers.mpi_launcher import Host
from cpudist.processes import python_main
from cpudist.store.serve import listen
from cpudist.topology.identity import addresses
from cpudist.topology.pinning_plan import Part

_ANSWER_SECONDS = 60.0  # starting Python takes long on a busy host with a slow disk
_SKEW_SECONDS = 60.0
_UP_SECONDS = 20.0
_BETWEEN_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_PROGRAM = "cpudist.doctor.facts"
_PARTS = {*get_args(Part), "default"}
_RANK_BYTES = 400 << 20  # a rank uses this much after it has imported torch and created its process group


@dataclass(frozen=True)
class Facts:
    """A host's report about itself.

    Attributes:
        identity: the same text for all names of one machine.
        python, cpudist, torch: versions; torch is None where it is not installed.
        ccl: why the ccl backend cannot be used, and the remedy; empty where it can be.
        skew: offset of its clock from ours in seconds; 0 if the delay of the answer can explain it.
        memory: free memory in bytes.
        folder: whether our working folder exists there.
        ranks: the number of ranks for each --ppn ("socket", "numa", "l3"), and the "default" without --ppn.
        script: a checksum of the job's script; None if the job has no script, or the host cannot read it.
        shared: whether the host shares our working folder; True if this was not checked.
        unreachable: why it cannot connect to us; empty if it can.
        lets_in: whether we can connect to it.
    """

    identity: str
    python: str
    cpudist: str
    torch: str | None
    ccl: str
    skew: float
    memory: int
    folder: bool
    ranks: dict[str, int]
    script: str | None = None
    shared: bool = True
    unreachable: str = ""
    lets_in: bool = True


@dataclass(frozen=True)
class Checked:
    """The result of a check: the facts of the hosts that answered, and the findings for every host."""

    facts: dict[Host, Facts]
    findings: dict[Host, list[Finding]]

    def of_level(self, level: Level) -> list[Finding]:
        """Return the findings of one level."""
        return [one for findings in self.findings.values() for one in findings if one.level == level]


def check(
    hosts: Sequence[Host], script: str = "", by_name: bool = True, shared: bool = False, interface: str | None = None
) -> Checked:
    """Check hosts in parallel; each host has a minute to answer.

    Args:
        hosts: the hosts to check. Each must have memory for `slots` ranks, or for one rank if `slots` is None.
        script: the job's script; empty where it has none.
        by_name: whether the hosts connect to this host by its name (`MpiLauncher.by_name`); otherwise by an address.
        shared: whether to check that the hosts share this process's working folder.
        interface: the network interface for all traffic; None: any.

    Raises:
        UserError: this host does not have that interface.
    """
    here = Host("localhost", where="this host")
    starter = [socket.gethostname()] if by_name else addresses(interface)[: 1 if interface else None]
    with folders.probe(os.getcwd()) if shared else nullcontext("") as probe:
        asked = (os.getcwd(), script, probe, interface or "", *starter)
        task = f"checking {number_of(len(hosts), 'host')}"
        reference, *answers = ask_all([here, *hosts], lambda host: _ask(host, *asked), task)
    if isinstance(reference, Finding):
        return Checked({}, {here: [reference]})
    among = any(isinstance(answer, Facts) and answer.identity == reference.identity for answer in answers)
    facts: dict[Host, Facts] = {}
    findings: dict[Host, list[Finding]] = {}
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, Finding):
            findings[host] = [answer]
            continue
        findings[host] = [*_judge(host, answer, reference, script, among), *_same_machine(host, answer, facts)]
        facts[host] = answer
    return Checked(facts, findings)


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
    """Return why a host is not up; empty if it is. It must resolve this host's name, which Hydra's proxies use."""
    if await asyncio.to_thread(is_here, host.name):
        return ""
    own = socket.gethostname()
    look_up = f"getent hosts {shlex.quote(own)} > /dev/null || echo unknown"
    answer = await run_on(host, ["sh", "-c", look_up], _UP_SECONDS)
    if answer.failure:
        return f"{place(host)} {answer.failure}; {answer.remedy}"
    if "unknown" in answer.output:
        return f"{place(host)} cannot resolve the name {own}; add it to DNS or to /etc/hosts there"
    return ""


async def _ask(host: Host, *asked: str) -> Facts | Finding:
    path = [entry for entry in sys.path if entry]  # PYTHONPATH may be set on this host only
    async with await asyncio.start_server(_connect_back, sock=listen([], 0)[0]) as server:
        port = str(server.sockets[0].getsockname()[1])
        before = time.time()
        answer = await run_on(host, [*python_main(_PROGRAM, path=path), port, *asked], _ANSWER_SECONDS)
        after = time.time()
    return understood(host, answer, lambda fields: _facts(fields, before, after))


async def _connect_back(asking: asyncio.StreamReader, answering: asyncio.StreamWriter) -> None:
    """Connect to the port that a host has sent, and send it a byte if this works."""
    address, _ = socket.getnameinfo(answering.get_extra_info("peername"), socket.NI_NUMERICHOST)
    with suppress(OSError, ValueError):
        there = asyncio.open_connection(address, int(await asking.readline()))
        _, trial = await asyncio.wait_for(there, _CONNECT_SECONDS)
        trial.close()
        answering.write(b"!")
    answering.close()


def _facts(fields: Any, before: float, after: float) -> Facts:
    """Return a host's facts, or raise ValueError; `before` and `after` are our clock's times around its answer."""
    theirs, others = answers.taken(fields, "seconds", float)
    facts = answers.read(Facts, {**others, "skew": min(theirs - before, 0.0) or max(theirs - after, 0.0)})
    if not facts.ranks.keys() >= _PARTS or min(facts.ranks.values()) < 1:
        raise ValueError("the numbers of ranks are incomplete")
    return facts


def _judge(host: Host, found: Facts, reference: Facts, script: str = "", among: bool = True) -> list[Finding]:
    findings = []

    def wrong(level: Level, message: str, remedy: str) -> None:
        findings.append(Finding(level, place(host), message, remedy))

    for name in ("python", "cpudist", "torch"):
        theirs, ours = getattr(found, name), getattr(reference, name)
        if theirs != ours:
            wrong("error", f"has {name} {theirs}, this host {ours}", "install the same version on all hosts")
    if not found.folder:
        wrong("error", f"has no folder {os.getcwd()}", "start from a folder that all hosts share, or make it there")
    elif reference.script not in (None, found.script):
        what = f"no {script}" if found.script is None else f"another {script} than this host"
        wrong("error", f"has {what}", "copy this host's to it, or start from a folder that all hosts share")
    elif not found.shared:
        message = f"has a folder {os.getcwd()} of its own: checkpoints need one that all hosts share"
        wrong("warning", message, "share one by NFS, or save in a folder that is shared")
    remedy = "open ports 1024 to 65535 between the hosts, or correct the address: /etc/hosts, --interface"
    if found.unreachable:
        wrong("error", f"cannot connect to this host at {found.unreachable}", remedy)
    if not found.lets_in:
        wrong("error" if among else "warning", "does not let this host connect to its free ports", remedy)
    if found.ccl:
        wrong("warning", "cannot use the backend ccl", found.ccl)
    if abs(found.skew) > _SKEW_SECONDS:
        wrong(
            "warning", f"has a clock that is {found.skew:+.0f} s off ours", "synchronise them: apt-get install chrony"
        )
    needed = _RANK_BYTES * (host.slots or 1)
    if found.memory < needed:
        wrong(
            "error",
            f"has {size(found.memory)} of free memory, and {host.slots or 1} ranks need {size(needed)} at least",
            "end what uses it, or start fewer ranks there",
        )
    return findings


def _same_machine(host: Host, found: Facts, others: dict[Host, Facts]) -> Iterator[Finding]:
    other = next((other for other, facts in others.items() if facts.identity == found.identity), None)
    if other is not None:
        remedy = f"name it once, with all its ranks: {other.name} slots=2"
        yield Finding("error", place(host), f"is the same machine as {other.name}", remedy)
