"""Waits for hosts that are still starting, such as the pods of a job: until each lets us in and knows our name."""

from __future__ import annotations

import asyncio
import shlex
import socket
import time
from collections.abc import Sequence

from cpudist.errors import UserError
from cpudist.launch.hostfile import Host
from cpudist.launch.remote import ask_all, is_here, run_on

_ANSWER_SECONDS = 20.0
_BETWEEN_SECONDS = 1.0


def wait_for(hosts: Sequence[Host], seconds: float) -> None:
    """Return once all hosts are there.

    Raises:
        UserError: some are not, after so many seconds; a line for each.
    """
    deadline = time.monotonic() + seconds
    missing = list(hosts)
    while True:
        troubles = ask_all(missing, _trouble)
        missing = [host for host, trouble in zip(missing, troubles, strict=True) if trouble]
        if not missing:
            return
        if time.monotonic() + _BETWEEN_SECONDS > deadline:
            raise UserError("\n".join(f"after {seconds:g} s, {trouble}" for trouble in troubles if trouble))
        time.sleep(_BETWEEN_SECONDS)


async def _trouble(host: Host) -> str:
    """Why a host is not ready; empty if it is. Hydra's helpers there call back by this host's name."""
    if await asyncio.to_thread(is_here, host.name):
        return ""
    own = socket.gethostname()
    look_up = f"getent hosts {shlex.quote(own)} > /dev/null || echo unknown"
    answer = await run_on(host, ["sh", "-c", look_up], "", _ANSWER_SECONDS)
    if answer.failure:
        return f"{host.where}: {host.name} {answer.failure}; {answer.remedy}"
    if "unknown" in answer.output:
        return f"{host.where}: {host.name} does not know the name {own}; add it to DNS or to /etc/hosts there"
    return ""
