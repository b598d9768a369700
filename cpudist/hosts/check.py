"""Check all hosts of a job at once before any rank starts, and wait for hosts that are still starting."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cpudist.console import size
from cpudist.errors import UserError
from cpudist.hosts.remote import ask_all, is_here, run_on
from cpudist.launchers.mpi_launcher import Host

_ANSWER_SECONDS = 60.0  # starting Python takes long on a busy host with a slow disk
_TRIAL_SECONDS = 60.0
_SKEW_SECONDS = 60.0
_UP_SECONDS = 20.0
_BETWEEN_SECONDS = 1.0
_RANK_BYTES = 400 << 20  # a rank after it has imported torch and made its process group

_PROGRAM = """\
import sys
sys.path[:1] = {path!r}
from cpudist.doctor.facts import main
main({folder!r}, {tries!r})
"""


@dataclass(frozen=True)
class Facts:
    """What a host reports of itself.

    Attributes:
        identity: the same text for all names of one machine.
        python, cpudist, torch: versions; torch is None where it is not installed.
        ccl: why the ccl backend cannot be used; empty where it can be.
        skew: seconds by which its clock is ahead of ours, as far as that exceeds the time that the answer took.
        memory: free memory in bytes.
        folder: whether our working folder exists there.
        ranks: the number of ranks with one for each "socket", "numa" node or "l3" cache.
        failure: what a trial of disk, memory and a collective has found; empty if all works, and without a trial.
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
    failure: str = ""


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with one host.

    Attributes:
        level: "error": a job would fail there; "warning": it would run, but slower or without some function.
        host: the host.
        message, remedy: what is wrong, and what to do.
    """

    level: Literal["error", "warning"]
    host: Host
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.host.where}: {self.host.name} {self.message}; {self.remedy}"


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        facts: of the hosts that answered.
        troubles: all that is wrong.
    """

    facts: dict[Host, Facts]
    troubles: list[Trouble]

    @property
    def errors(self) -> list[Trouble]:
        """The troubles with which a job would fail."""
        return [trouble for trouble in self.troubles if trouble.level == "error"]


def check(hosts: Sequence[Host], tries: bool = False) -> Checked:
    """Check hosts at the same time, for a minute at most; with `tries`, for two.

    Args:
        hosts: the hosts; `slots`, where known, is the number of ranks on one.
        tries: whether each writes to its disk, fills memory and runs a collective.
    """
    here = Host("localhost", where="this host")
    reference, *answers = ask_all([here, *hosts], lambda host: _ask(host, tries and host is not here))
    if isinstance(reference, Trouble):
        return Checked({}, [reference])
    facts = {host: answer for host, answer in zip(hosts, answers, strict=True) if isinstance(answer, Facts)}
    troubles = [answer for answer in answers if isinstance(answer, Trouble)]
    for host, found in facts.items():
        troubles += _judge(host, found, reference)
    return Checked(facts, troubles + _same_machine(facts))


def wait_for(hosts: Sequence[Host], seconds: float) -> None:
    """Wait until hosts that are still starting, such as pods, let us in and can resolve this host's name.

    Raises:
        UserError: some are not up after so many seconds; a line for each.
    """
    deadline = time.monotonic() + seconds
    missing = list(hosts)
    while True:
        troubles = ask_all(missing, _why_not_up)
        missing = [host for host, trouble in zip(missing, troubles, strict=True) if trouble]
        if not missing:
            return
        if time.monotonic() + _BETWEEN_SECONDS > deadline:
            raise UserError("\n".join(f"after {seconds:g} s, {trouble}" for trouble in troubles if trouble))
        time.sleep(_BETWEEN_SECONDS)


async def _why_not_up(host: Host) -> str:
    """Return why a host is not up; empty if it is. Hydra's proxy there connects back to this host by its name."""
    if await asyncio.to_thread(is_here, host.name):
        return ""
    own = socket.gethostname()
    look_up = f"getent hosts {shlex.quote(own)} > /dev/null || echo unknown"
    answer = await run_on(host, ["sh", "-c", look_up], "", _UP_SECONDS)
    if answer.failure:
        return f"{host.where}: {host.name} {answer.failure}; {answer.remedy}"
    if "unknown" in answer.output:
        return f"{host.where}: {host.name} cannot resolve the name {own}; add it to DNS or to /etc/hosts there"
    return ""


async def _ask(host: Host, tries: bool = False) -> Facts | Trouble:
    program = _PROGRAM.format(path=[entry for entry in sys.path if entry], folder=os.getcwd(), tries=tries)
    before = time.time()
    answer = await run_on(host, [sys.executable, "-"], program, _ANSWER_SECONDS + _TRIAL_SECONDS * tries)
    after = time.time()
    if answer.failure:
        return Trouble("error", host, answer.failure, answer.remedy)
    last = "".join(answer.output.strip().splitlines()[-1:])  # a login shell may greet first
    try:
        return _facts(json.loads(last), before, after)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Trouble(
            "error",
            host,
            f"gives an answer that is not understood: {last[:80]!r}",
            "install the same cpudist on all hosts",
        )


def _facts(fields: dict[str, Any], before: float, after: float) -> Facts:
    """Return the facts that a host has written between two moments of our clock."""
    theirs = fields.pop("seconds")
    return Facts(skew=min(theirs - before, 0.0) or max(theirs - after, 0.0), **fields)


def _judge(host: Host, found: Facts, reference: Facts) -> list[Trouble]:
    troubles = []

    def wrong(level: Literal["error", "warning"], message: str, remedy: str) -> None:
        troubles.append(Trouble(level, host, message, remedy))

    for name in ("python", "cpudist", "torch"):
        theirs, ours = getattr(found, name), getattr(reference, name)
        if theirs != ours:
            wrong("error", f"has {name} {theirs}, this host {ours}", "install the same version on all hosts")
    if found.failure:
        wrong("error", found.failure, "see dmesg there, or take its line out")
    if not found.folder:
        wrong("error", f"has no folder {os.getcwd()}", "start from a folder that all hosts share, or make it there")
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
    return troubles


def _same_machine(facts: dict[Host, Facts]) -> list[Trouble]:
    first: dict[str, Host] = {}
    troubles = []
    for host, found in facts.items():
        other = first.setdefault(found.identity, host)
        if other is not host:
            remedy = f"name it once, with all its ranks: {other.name} slots=2"
            troubles.append(Trouble("error", host, f"is the same machine as {other.name}", remedy))
    return troubles
