"""Looks at all hosts of a job at once, before any rank starts, and says everything that is wrong with them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cpudist.launch.hostfile import Host
from cpudist.launch.remote import ask_all, run_on

_ANSWER_SECONDS = 60.0  # a busy host with a slow disk takes long to start Python
_SKEW_SECONDS = 60.0
_RANK_BYTES = 400 << 20  # a rank that has imported torch and made its process group

_PROGRAM = """\
import sys
sys.path[:1] = {path!r}
from cpudist.doctor.facts import main
main({folder!r})
"""


@dataclass(frozen=True)
class Facts:
    """What a host has said of itself.

    Attributes:
        identity: the same text for two names of one machine.
        python, cpudist, torch: versions; torch is None where it is not installed.
        ccl: why the ccl backend cannot be used; empty where it can.
        skew: seconds that its clock is ahead of ours, at least; 0 where the time of asking hides it.
        memory: bytes that are free.
        folder: whether our working folder is there too.
        ranks: how many ranks there would be with one for each "socket", "numa" node, "l3" cache.
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


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with one host.

    Attributes:
        level: "error": a job would fail there; "warning": it would run, slower or not in every way.
        host: which one.
        message, remedy: what is wrong and what to do.
    """

    level: Literal["error", "warning"]
    host: Host
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.host.where}: {self.host.name} {self.message}; {self.remedy}"


@dataclass(frozen=True)
class Checked:
    """The hosts that answered, with what they said, and everything that is wrong."""

    facts: dict[Host, Facts]
    troubles: list[Trouble]

    @property
    def errors(self) -> list[Trouble]:
        """What would make a job fail."""
        return [trouble for trouble in self.troubles if trouble.level == "error"]


def check(hosts: Sequence[Host]) -> Checked:
    """Ask all hosts, each for a minute at most. A host's `slots`, where they are known, are the ranks that it gets."""
    here = Host("localhost", where="this host")
    reference, *answers = ask_all([here, *hosts], _ask)
    if isinstance(reference, Trouble):
        return Checked({}, [reference])
    facts = {host: answer for host, answer in zip(hosts, answers, strict=True) if isinstance(answer, Facts)}
    troubles = [answer for answer in answers if isinstance(answer, Trouble)]
    for host, found in facts.items():
        troubles += _judge(host, found, reference)
    return Checked(facts, troubles + _same_machine(facts))


async def _ask(host: Host) -> Facts | Trouble:
    program = _PROGRAM.format(path=[entry for entry in sys.path if entry], folder=os.getcwd())
    before = time.time()
    answer = await run_on(host, [sys.executable, "-"], program, _ANSWER_SECONDS)
    after = time.time()
    if answer.failure:
        return Trouble("error", host, answer.failure, answer.remedy)
    last = "".join(answer.output.strip().splitlines()[-1:])  # shells may greet before
    try:
        return _facts(json.loads(last), before, after)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Trouble(
            "error", host, f"gives no facts that are understood: {last[:80]!r}", "install the same cpudist on all hosts"
        )


def _facts(fields: dict[str, Any], before: float, after: float) -> Facts:
    """What a host has written between two moments of ours."""
    said = fields.pop("seconds")
    return Facts(skew=min(said - before, 0.0) or max(said - after, 0.0), **fields)


def _judge(host: Host, found: Facts, reference: Facts) -> list[Trouble]:
    troubles = []

    def wrong(level: Literal["error", "warning"], message: str, remedy: str) -> None:
        troubles.append(Trouble(level, host, message, remedy))

    for name in ("python", "cpudist", "torch"):
        theirs, ours = getattr(found, name), getattr(reference, name)
        if theirs != ours:
            wrong("error", f"has {name} {theirs}, this host {ours}", "install the same version on all hosts")
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
            f"has {found.memory >> 20} MiB of free memory, and {host.slots or 1} ranks need {needed >> 20} at least",
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
