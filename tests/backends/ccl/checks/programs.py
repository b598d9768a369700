"""Runs programs of this folder, one after the other in the same processes: `programs.py CHECK.py WORDS -- CHECK.py …`.

They run under conditions that this machine may not have:
CPUDIST_TEST_PROGRESS=polls|naps: a core to spare for the engine's thread, or none.
CPUDIST_TEST_NAP=SECONDS: how long the engine's thread sleeps between two looks, where no core is spared for it.
CPUDIST_TEST_HOSTS=N: the ranks believe that they are spread over N machines.
CPUDIST_TEST_ONLY=WORD: of a program's checks only those whose name contains WORD.
"""

import functools
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import cpudist
from cpudist import job, launchers
from cpudist.backends.ccl import ccl_group, extension


def run_checks(program: dict[str, Any]) -> None:
    """Call each function of `program` whose name begins with check_; an error names it."""
    for name, check in list(program.items()):
        if name.startswith("check_") and os.environ.get("CPUDIST_TEST_ONLY", "") in name:
            try:
                check()
            except BaseException as error:
                error.args = (f"{name}: {error}",)
                raise


def leave(details: str = "") -> None:
    """Leave the job. Once all ranks have come this far, rank 0 says that this program has passed."""
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{Path(sys.argv[0]).stem} passed on {job.require().world}{details}")
    cpudist.shutdown()


def with_nap(module: Any, seconds: float) -> Any:
    module.start_thread = functools.partial(module.start_thread, nap_seconds=seconds)
    return module


if __name__ == "__main__":
    progress, nap, hosts = (os.environ.get(f"CPUDIST_TEST_{word}", "") for word in ("PROGRESS", "NAP", "HOSTS"))
    place = launchers.detect(os.environ).placement()
    if progress:
        ccl_group.cores_to_spare = lambda *_: 1 if progress == "polls" else 0
    if nap:
        ccl_group.load = functools.cache(lambda: with_nap(extension.load(), float(nap)))
    if hosts:
        ccl_group.node_identity = lambda: f"host {place.rank * int(hosts) // place.size}"
    for check in " ".join(sys.argv[1:]).split(" -- "):
        sys.argv = check.split()
        runpy.run_path(str(Path(__file__).with_name(sys.argv[0])), run_name="__main__")
    assert not progress or extension.load().polls() == (progress == "polls")
    print(f"progress: {progress}")
