"""The guards of a job (guard.py), one on every host, as `cpudist launch` starts, hears and ends them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cpudist.errors import UserError
from cpudist.launch import guard
from cpudist.launch.hostfile import Host
from cpudist.launch.remote import CONNECT_SECONDS, command_on
from cpudist.waiting import poll

_TALK_SECONDS = 2.0
_START_SECONDS = CONNECT_SECONDS + 10.0
_LEAVE_SECONDS = 8.0  # a guard takes five to kill what does not go


class Guards:
    """All guards of one job, started and answering.

    Args:
        hosts: where the job runs; this host has a guard in any case, since the launcher runs here.
        job: what its processes carry as CPUDIST_JOB_ID.
        rank_variable: what ranks alone have in their environment.

    Raises:
        UserError: a host does not let its guard start.
    """

    def __init__(self, hosts: Sequence[Host], job: str, rank_variable: str) -> None:
        self.first_gone: dict[str, int | None] = {}  # for each host the rank that ended first, if one did
        self._guards = [_Guard(host, job, rank_variable) for host in hosts]
        if not any(one.is_here for one in self._guards):
            self._guards.append(_Guard(Host("localhost"), job, rank_variable))
        if not poll(lambda: self._hear() or all(one.answered for one in self._guards), _START_SECONDS):
            silent = next(one for one in self._guards if not one.answered)
            self.end()
            raise UserError(
                f"{silent.host.where}: {silent.host.name} lets no guard start, which would end lost processes; "
                f"try: ssh {silent.host.name} true"
            )

    @property
    def ranks_ended(self) -> bool:
        """Whether ranks have been seen, and none lives on any host that answers."""
        answering = [one for one in self._guards if not one.silent_for(2 * _TALK_SECONDS)]
        return any(one.had_ranks for one in answering) and not any(one.ranks for one in answering)

    @property
    def lost(self) -> list[Host]:
        """Hosts that do not answer any more, or whose guard has ended."""
        return [one.host for one in self._guards if one.ended or one.silent_for(guard.SILENCE_SECONDS)]

    def tick(self) -> None:
        """Hear what they say, and let them hear that we are here; to be called a few times in every second."""
        self._hear()
        for one in self._guards:
            one.talk()

    def signal_ranks(self, number: int) -> bool:
        """Send a signal to all ranks; returns whether there are any."""
        for one in self._guards:
            one.tell(f"signal {number}")
        return any(one.ranks for one in self._guards)

    def end(self) -> list[Host]:
        """Let them end all that is left of the job, in a bounded time; returns the hosts that did not answer."""
        for one in self._guards:
            one.tell("end")
        poll(lambda: self._hear() or all(one.left is not None or one.ended for one in self._guards), _LEAVE_SECONDS)
        for one in self._guards:
            one.stop()
        return [one.host for one in self._guards if one.left != 0]

    def _hear(self) -> bool:
        for one in self._guards:
            for rank in one.hear():
                self.first_gone.setdefault(one.host.name, rank)
        return False


class _Guard:
    """One guard: what it said last, and when."""

    def __init__(self, host: Host, job: str, rank_variable: str) -> None:
        self.host = host
        self.ranks = 0
        self.had_ranks = False
        self.answered = False
        self.ended = False
        self.left: int | None = None
        words = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve()), job, rank_variable]
        command = command_on(host, words)
        self.is_here = command == words
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, who then tell it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._text = b""
        self._heard = self._talked = time.monotonic()

    def silent_for(self, seconds: float) -> bool:
        """Whether nothing has come from it for so long."""
        return time.monotonic() - self._heard > seconds

    def hear(self) -> list[int | None]:
        """Take in what it has said; returns the ranks that have ended."""
        with suppress(BlockingIOError):
            said = os.read(self._output, 65536)
            self.ended = self.ended or not said
            self._text += said
            self._heard = time.monotonic()
        *lines, self._text = self._text.split(b"\n")
        gone: list[int | None] = []
        for line in lines:
            word, _, number = line.decode(errors="replace").partition(" ")
            if word not in ("ranks", "gone", "went", "left") or not number.isdecimal():
                continue  # a shell's greeting
            self.answered = True
            if word == "ranks":
                self.ranks = int(number)
                self.had_ranks = self.had_ranks or self.ranks > 0
            elif word in ("gone", "went"):
                self.ranks -= 1
                gone.append(int(number) if word == "gone" else None)
            else:
                self.left = int(number)
        return gone

    def talk(self) -> None:
        """Let it hear from us, every few seconds."""
        if time.monotonic() - self._talked > _TALK_SECONDS:
            self.tell("here")

    def tell(self, word: str) -> None:
        """Say a word, without waiting for it to be taken."""
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._input, f"{word}\n".encode())
        self._talked = time.monotonic()

    def stop(self) -> None:
        """End our side of it. Where the connection is lost, its own side ends by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
