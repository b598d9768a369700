"""How a rank is found and asked on its machine."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

# On this a rank writes its stacks to standard error. Not SIGUSR1 or SIGUSR2, which Slurm's users, submitit and
# Lightning take for preemption and MPICH for lost ranks; nor SIGQUIT, with which terminals and torchrun end jobs.
SIGNAL = signal.SIGRTMIN + 7

_NAME = re.compile(r"cpudist/rank/(\d+)\.(\d+)\.(\d+)\.(.*)")


@dataclass(frozen=True, order=True)
class Address:
    """A rank that can be asked.

    Attributes:
        job: a text that all ranks of the job have in common, and no other job here.
        rank, size: its place in the job.
        pipe: the file descriptor, in its process, where its stacks can be read after `SIGNAL`.
    """

    job: str
    rank: int
    size: int
    pipe: int

    def socket_name(self) -> str:
        """The name of its socket, in Linux's abstract namespace (unix(7)), which has no files: a zero byte leads it."""
        return f"\0cpudist/rank/{self.rank}.{self.size}.{self.pipe}.{self.job}"

    @classmethod
    def of(cls, socket_name: str) -> Address | None:
        """The address behind a socket's name, as /proc/net/unix shows it, with @ for the zero; None for others'."""
        match = _NAME.fullmatch(socket_name[1:])
        return cls(match[4], int(match[1]), int(match[2]), int(match[3])) if match else None
