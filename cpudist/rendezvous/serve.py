"""Runs the job's store, as a process of its own beside rank 0.

A process, so that it answers whatever rank 0 is doing, and knows of its end as of any other rank's: from connections
that break. It reads one JSON line (token, addresses, port, silence) from standard input, prints the port, and ends when
its standard input has ended and nobody is connected any more, at the latest a few seconds later. No signal that is
meant for the job ends it. Where a launcher has killed all ranks at once, nobody but this process can say which one was
lost first.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

from cpudist.console import say
from cpudist.rendezvous.server import Server

_BACKLOG = 4096


def main() -> None:
    """Serve as standard input says, for as long as it stays open."""
    # Slurm sends its signals, SIGUSR1 before the time is over among them, to all that a rank has started.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the ranks still have to tell each other how they end
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wishes = json.loads(sys.stdin.readline())
    try:
        listening = listen(wishes["addresses"], wishes["port"])
    except OSError as error:
        print(f"error {error.strerror}".split(" (while")[0], flush=True)
        return
    print(listening[0].getsockname()[1], flush=True)
    server = Server(bytes.fromhex(wishes["token"]), listening, wishes["silence"])
    for text in server.run(sys.stdin.fileno(), _fall_silent)[:1]:  # what came next are consequences
        say(text)


def _fall_silent() -> None:
    """Let go of standard error: it is the job's, and a launcher may wait until nobody has it any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def listen(addresses: list[str], port: int) -> list[socket.socket]:
    """Listen at `addresses`, or everywhere if there are none, at one port; 0 is any that is free.

    Raises:
        OSError: an address is not this machine's, or the port is taken.
    """
    if addresses:
        first = _listen_at(addresses[0], port)
        return [first, *(_listen_at(address, first.getsockname()[1]) for address in addresses[1:])]
    if socket.has_dualstack_ipv6():
        return [socket.create_server(("::", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)]
    return [socket.create_server(("", port), backlog=_BACKLOG)]


def _listen_at(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=_BACKLOG)
