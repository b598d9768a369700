"""Run the ranks of a job as forks of this process, which has imported torch: they start in tenths of a second."""

import atexit
import faulthandler
import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from cpudist.job import Job, start_job
from cpudist.job.job_options import JobOptions
from cpudist.launchers import detect
from cpudist.topology.identity import free_port
from cpudist.waiting import poll


def begin(**options: Any) -> Job:
    return start_job(detect(), JobOptions(backend="gloo", **options))


def fork_ranks(
    script: Callable[[], object], size: int = 2, seconds: float = 60, variables: Mapping[str, str] | None = None
) -> list[tuple[int | None, str]]:
    """Run `script` on all ranks of a job without a launcher; return each rank's exit status and its output.

    After `seconds` the ranks that still run are killed.
    """
    address = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables = {**(variables or {}), **address}
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, str(rank)) for rank in range(size)]
        ranks = [get_context("fork").Process(target=_run, args=(script, path, variables)) for path in outputs]
        for rank in ranks:
            rank.start()
        end = time.monotonic() + seconds
        for rank in ranks:
            rank.join(max(end - time.monotonic(), 0))
            rank.kill()
            rank.join()
        return [(rank.exitcode, _read(path)) for rank, path in zip(ranks, outputs, strict=True)]


def _read(output: Path) -> str:
    """Return a rank's output once its store, which may outlive it, has written, too."""
    with output.open() as file:
        poll(lambda: _lock(file.fileno(), fcntl.LOCK_EX), 10)
        return file.read()


def _lock(file: int, how: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, how | fcntl.LOCK_NB)
        return True
    return False


def _run(script: Callable[[], object], output: Path, variables: Mapping[str, str]) -> None:
    """Run `script` as the interpreter would, without what pytest has changed in it."""
    os.environ.update(variables, RANK=output.name)
    torch.set_num_threads(1)  # the fork lacks the threads of pytest's OpenMP, and would wait for them
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    _lock(file, fcntl.LOCK_SH)  # until no process has the file open
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
    faulthandler.enable()  # pytest's writes where nobody sees it
    sys.excepthook = sys.__excepthook__
    atexit._clear()
    status = 0
    try:
        script()
    except BaseException as error:  # noqa: BLE001
        status, sys.last_value = 1, error
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    os._exit(status)
