"""The program of each rank of a notebook's job: `python -c … PAYLOAD CHANNEL`, two descriptors of memory files."""

import atexit
import os
import pickle
import sys
import threading
import traceback
from functools import partial
from typing import BinaryIO

from cpudist import launchers
from cpudist.notebook.pickling import unpack
from cpudist.notebook.result import Failure, Result, ResultChannel
from cpudist.pinning import pin
from cpudist.processes.ending import end_now
from cpudist.script.frames import from_user_code


def _call(payload: BinaryIO, channel: ResultChannel, rank: int) -> None:
    call = unpack(payload)  # only now, because unpickling may import libraries that the job patches
    result = call()
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].show()  # Jupyter does this at the end of a cell
    channel.publish(Result(result if rank == 0 else None))


def main() -> None:
    """Run one rank to its end; a failure ends the process."""
    completed = threading.Event()
    # Registered first, so called last. Finalizing an interpreter that has imported torch takes seconds on busy cores.
    atexit.register(lambda: end_now(0) if completed.is_set() else None)
    payload, descriptor = int(sys.argv[1]), int(sys.argv[2])
    launcher = launchers.detect()
    channel = ResultChannel(descriptor)
    with open(f"/proc/self/fd/{payload}", "rb") as file:
        sys.path[:], settings = pickle.load(file)
        pinning = pin(launcher)  # it may replace this process by exec
        for inherited in (payload, descriptor):
            os.set_inheritable(inherited, False)
        sys.argv = [""]
        rank = launcher.placement().rank
        ResultChannel.of_rank_0 = channel if rank == 0 else None

        try:
            channel.publish(None)
            # Import this late: torch reads the affinity and thread variables when it is imported.
            from cpudist import api
            from cpudist.training.run_target import run_target

            run_target(partial(_call, file, channel, rank), api.enter(launcher, settings.options, pinning))
            completed.set()
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt end the job too
            lines = traceback.format_exception(type(error), error, from_user_code(error.__traceback__))
            from cpudist import job

            channel.publish(Failure.of(rank, error, "".join(lines).rstrip(), job.waited_for(error)))
            job.fail(error, lambda _error: None, rank)  # the cell shows the traceback
