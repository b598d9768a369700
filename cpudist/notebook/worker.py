"""What each rank of a notebook's job runs: `python -c … PAYLOAD MAILBOX`, two descriptors of memory files."""

from __future__ import annotations

import io
import os
import pickle
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO

from cpudist import environments
from cpudist.notebook.carry import unpack
from cpudist.notebook.outcome import Failure, Mailbox, Result, traceback_of
from cpudist.pinning import pin


@dataclass(frozen=True)
class Orders:
    """What the notebook tells its ranks besides the call: where it finds modules, and what to start."""

    path: list[str]
    backend: str
    timeout: float


@dataclass(frozen=True)
class _Call:
    """The notebook's function as what `run_target` runs."""

    payload: BinaryIO
    mailbox: Mailbox
    rank: int

    def run(self) -> None:
        call = unpack(self.payload)  # now, since it may import libraries that the job prepares for
        result = call()
        self.mailbox.leave(Result(result if self.rank == 0 else None))


def main() -> None:
    """Run one rank; ends the process."""
    payload, descriptor = int(sys.argv[1]), int(sys.argv[2])
    environment = environments.detect()
    mailbox = Mailbox(descriptor)
    with open(f"/proc/self/fd/{payload}", "rb") as file:
        orders: Orders = pickle.load(file)
        sys.path[:] = orders.path
        pinning = pin(environment, [])  # it may start this process once more
        for inherited in (payload, descriptor):
            os.set_inheritable(inherited, False)
        sys.argv = [""]
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # as in a terminal
        rank = environment.placement().rank

        # Late: torch takes seconds to import, and is to find its threads and cores arranged.
        from cpudist import api, job
        from cpudist.training.run import run_target

        try:
            running = api.enter(environment, orders.backend, orders.timeout, None, None, pinning)
            run_target(_Call(file, mailbox, rank), running, None)
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt end the job too
            mailbox.leave(Failure.of(rank, error, traceback_of(error, _users(error.__traceback__))))
            job.fail(error, lambda _error: None, rank)  # the cell shows the traceback


def write_orders(orders: Orders, file: BinaryIO) -> None:
    """Put them where `main` reads them; the call follows."""
    pickle.dump(orders, file)


def _users(where: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that have led into the notebook's function."""
    first = where
    while where is not None and str(where.tb_frame.f_globals.get("__name__")).startswith("cpudist."):
        where = where.tb_next
    return where or first
