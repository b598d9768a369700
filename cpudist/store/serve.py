"""Run the job's store in its own process beside rank 0.

The process answers even while rank 0 is busy. It detects the end of rank 0, as of any other rank, by a broken
connection. It reads one line of JSON (token, addresses, port, keepalive_timeout) from standard input and prints the
port. After the end of standard input it exits as soon as no client is connected, at the latest after 5 seconds. It
ignores the job's signals: if a launcher kills all ranks at once, only this process can report the first lost rank.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys

from cpudist.console import say
from cpudist.store.server import Server


def main() -> None:
    """Serve with the options from standard input until it is closed and the clients have disconnected."""
    # Slurm sends signals to all processes of a rank, such as SIGUSR1 before the time limit.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # ranks report through the store why they end
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    options = json.loads(sys.stdin.readline())
    try:
        listening = listen(options["addresses"], options["port"])
    except OSError as error:
        print(f"error {error.strerror}".split(" (while")[0], flush=True)
        return
    print(listening[0].getsockname()[1], flush=True)
    asyncio.run(_serve(Server(bytes.fromhex(options["token"]), listening, options["keepalive_timeout"])))


async def _serve(server: Server) -> None:
    for text in (await server.run(sys.stdin.fileno(), _release_output))[:1]:  # later losses follow from the first
        say(text)


def _release_output() -> None:
    """Close the job's standard error, because a launcher may wait until no process has it open."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())
    os.close(nowhere)


def listen(addresses: list[str], port: int) -> list[socket.socket]:
    """Listen on one port at all `addresses`; without addresses at all of this machine. Port 0 takes a free port."""
    if addresses:
        first = _listen_at(addresses[0], port)
        return [first, *(_listen_at(address, first.getsockname()[1]) for address in addresses[1:])]
    if socket.has_dualstack_ipv6():
        return [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)]
    return [socket.create_server(("", port))]


def _listen_at(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)
