"""What the programs of this folder have in common: they run their checks, and leave the job together."""

import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import cpudist


def run_checks(program: dict[str, Any]) -> int:
    """Call each function of `program` whose name begins with check_; an error names it. Return how many there were.

    CPUDIST_TEST_ONLY=WORD: only those whose name contains WORD.
    """
    chosen = os.environ.get("CPUDIST_TEST_ONLY", "")
    checks = {name: check for name, check in program.items() if name.startswith("check_") and chosen in name}
    for name, check in checks.items():
        try:
            check()
        except BaseException as error:
            error.args = (f"{name}: {error}",)
            raise
    return len(checks)


def leave(world: cpudist.World, details: str = "") -> None:
    """Leave the job. Once all ranks have come this far, rank 0 says that this program has passed."""
    dist.barrier()
    if world.rank == 0:
        print(f"{Path(sys.argv[0]).stem} passed on {world}{details}")
    cpudist.shutdown()
