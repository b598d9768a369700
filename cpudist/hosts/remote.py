"""Run commands on other hosts over ssh, which never asks for a password, and on this host directly."""

import asyncio
import ipaddress
import json
import os
import re
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any, TypeVar

from cpudist import typed_json
from cpudist.console import names_of, say
from cpudist.findings import Finding
from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.identity import addresses, resolved

T = TypeVar("T")

THIS_HOST = "this host"  # `Host.where` of this host if no hostfile names it
CONNECT_SECONDS = 10
AT_ONCE = 64  # limit on connections that open at the same time; sshd and login nodes refuse more

# Override the user's ssh_config: a shared connection would end with the user's sessions, and a job's hosts need no
# forwarded agent or port.
_OPTIONS = (
    *("BatchMode=yes", f"ConnectTimeout={CONNECT_SECONDS}"),
    *("ControlPath=none", "ForwardAgent=no", "ClearAllForwardings=yes", "RemoteCommand=none"),
    "ServerAliveInterval=0",  # callers limit the time that they wait for an answer
)
_SSH = ("ssh", "-T", "-x", *(word for option in _OPTIONS for word in ("-o", option)))
_SSH_FAILED = 255
_SILENT_SECONDS = 2.0
_SLOW_NAME_SECONDS = 3.0
_slow_names: list[str] = []  # at most one name: only the first slow one is reported
_LONGEST_LINE = 64 << 20  # bytes
_BEGINS = "cpudist-begins"  # a line between the output of the login shell's start-up files and the program's

_REMEDIES = {  # ssh's messages, and the remedy for each.
    "Could not resolve hostname": "correct its name, or add it to /etc/hosts",
    "Connection refused": "start sshd there (Debian: apt-get install openssh-server)",
    "Permission denied": "let this user in without a password: ssh-copy-id {host}",
    "IDENTIFICATION HAS CHANGED": "if it was installed anew: ssh-keygen -R {host}; if not, another machine answers",
    "Host key verification failed": "accept its key once: ssh {host} true",
    "No route to host": "check its power and cable, or remove its line",
    "Network is unreachable": "check this host's route to it, or remove its line",
    "timed out": "check that it is on and no firewall drops port 22, or remove its line",
}

Answer = str | Finding  # The standard output of a program on a host, or why it failed.


@cache
def is_here(name: str) -> bool:
    """Return whether a name or address is this machine's, so that no ssh is needed."""
    if name.lower() in ("localhost", socket.gethostname().lower()):
        return True
    begin = time.monotonic()
    found = resolved(name)
    if (seconds := time.monotonic() - begin) > _SLOW_NAME_SECONDS and not _slow_names:
        _slow_names.append(name)
        say(f"warning: the name server takes {seconds:.0f} s for {name}; add the hosts to /etc/hosts")
    if not found:
        return False
    return bool(found & set(addresses())) or all(ipaddress.ip_address(address).is_loopback for address in found)


def names(hosts: Iterable[Host]) -> str:
    """Return the names of hosts, joined for a sentence."""
    return names_of(host.where if host.where == THIS_HOST else host.name for host in hosts)


def command_on(host: Host, words: Sequence[str]) -> list[str]:
    """Return the command line that runs `words` on a host."""
    return list(words) if is_here(host.name) else [*_SSH, host.name, " ".join(map(quoted, words))]


def quoted(word: str) -> str:
    """Quote a word without line breaks for any login shell.

    `shlex.quote` is not enough: within single quotes fish interprets backslashes, and csh exclamation marks.
    """
    return "'" + re.sub(r"(['\\!])", r"'\\\1'", word) + "'"


def ask_all(hosts: Sequence[Host], ask: Callable[[Host], Coroutine[Any, Any, T]], task: str = "") -> list[T]:
    """Await `ask` for every host, as `ask_each` does. Ctrl-C cancels all calls."""
    return asyncio.run(ask_each(hosts, ask, task))


async def ask_each(hosts: Sequence[Host], ask: Callable[[Host], Coroutine[Any, Any, T]], task: str = "") -> list[T]:
    """Await `ask` for every host, up to 64 at the same time, and return the results in order.

    If a `task` is given, a line names the hosts that have not answered after two seconds.
    """
    missing, places = [*hosts], asyncio.Semaphore(AT_ONCE)

    async def one(host: Host) -> T:
        async with places:
            answer = await ask(host)
        missing.remove(host)
        return answer

    async def tell() -> None:
        await asyncio.sleep(_SILENT_SECONDS)
        say(f"{task}: waiting for {names(missing)}")

    telling = asyncio.create_task(tell()) if task else None
    try:
        return await asyncio.gather(*map(one, hosts))
    finally:
        if telling:
            telling.cancel()


async def run_on(host: Host, words: Sequence[str], timeout: float) -> Answer:
    """Run a program on a host, without input, for `timeout` seconds at most."""
    async with program_on(host, words, timeout, DEVNULL) as answer:
        return await answer()


@asynccontextmanager
async def program_on(
    host: Host, words: Sequence[str], timeout: float, stdin: int = PIPE
) -> AsyncIterator[Callable[..., Coroutine[Any, Any, Answer]]]:
    """Run a program on a host during the block. Yield a function that sends it a line, if any, and returns its answer.

    The answer is the next line that is JSON, or all output if the program ends without one; it may take `timeout` s.
    """
    command = await asyncio.to_thread(command_on, host, words)  # in a thread, because resolving the name blocks
    if not (begun := command[0] != "ssh"):
        command[-1] = f"echo {_BEGINS}; {command[-1]}"
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=stdin, stdout=PIPE, stderr=PIPE, limit=_LONGEST_LINE, start_new_session=True
        )
    except OSError as error:
        failed = _failure(host, f"cannot run {command[0]}: {error.strerror}", "apt-get install openssh-client")
        yield lambda: asyncio.sleep(0, failed)
        return
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = process.stdout, asyncio.create_task(process.stderr.read())

    async def read() -> Answer:
        nonlocal begun
        before = b""
        while line := await output.readline():
            if not begun:
                begun = line.rstrip().endswith(_BEGINS.encode())
                continue
            if _is_json(line):
                return line.decode(errors="replace")
            before += line
        written = [text.decode(errors="replace") for text in (before, await errors)]
        return _read(host, command, words[0], await process.wait(), *written)

    async def answer(line: str = "") -> Answer:
        if line and process.stdin is not None:
            process.stdin.write(f"{line}\n".encode())
        try:
            return await asyncio.wait_for(read(), timeout)
        except TimeoutError:
            remedy = f"log in and see what keeps it busy, or remove its line: ssh {host.name}"
            return _failure(host, f"does not answer within {timeout:g} s", remedy)

    try:
        yield answer
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # children too: wait() would wait for their pipes
            await process.wait()
        errors.cancel()


def understood(host: Host, answer: Answer, read: Callable[[Any], T]) -> T | Finding:
    """Return what `read` makes of the JSON in an answer's last line; a `Finding` if there is none, or a ValueError.

    A login shell's greeting may come before that line.
    """
    if isinstance(answer, Finding):
        return answer
    try:
        return read(typed_json.last_line(answer))
    except ValueError:
        last = answer.strip().rpartition("\n")[2]
        message = f"gives an answer that is not understood: {last[:80]!r}"
        return _failure(host, message, "install the same cpudist on all hosts")


def place(host: Host) -> str:
    """Return the file and line that name a host, and its name, for messages."""
    return f"{host.where}: {host.name}"


def _failure(host: Host, message: str, remedy: str) -> Finding:
    return Finding("error", place(host), message, remedy)


def _is_json(line: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict | list)
    return False


def _read(host: Host, command: list[str], program: str, status: int, output: str, errors: str) -> Answer:
    """Return the answer of `program`, which `command` ran on the host."""
    if status == 0:
        return output
    said = (errors.strip().splitlines() or [f"exit status {status}"])[-1]
    if command[0] == "ssh" and status == _SSH_FAILED:
        remedy = next((text for words, text in _REMEDIES.items() if words in errors), "try: ssh {host} true")
        return _failure(host, f"ssh cannot reach it: {said}", remedy.format(host=host.name))
    if status in (126, 127):
        remedy = "the environment must lie at the same path on every host: copy it there, or share its folder"
        return _failure(host, f"has no {program}", remedy)
    return _failure(host, f"{program} fails there: {said}", "install the same environment as on this host")
