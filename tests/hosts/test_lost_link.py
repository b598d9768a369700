"""After a host's link is lost, nothing is left of the ranks and their launchers on either side."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bed import Bed
from mpis import MPIS, mpirun_on

from cpudist.waiting import poll

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parent / "checks" / "link_lost.py"
RANKS = 4


@pytest.mark.parametrize("mpi", MPIS)
def test_nothing_is_left_on_either_side_of_a_lost_link(bed: Bed, tmp_path: Path, mpi: str) -> None:
    """`Bed.run` fails the test when mpirun does not return, or when a process of the job is left on any host."""
    command = [*mpirun_on(bed, mpi, 2), sys.executable, str(SCRIPT), str(tmp_path)]
    library = {"MPI4PY_LIBMPI": "/usr/lib/x86_64-linux-gnu/libmpi.so.40"} if mpi == "openmpi" else None
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(bed.run, "h0", command, 60, library)
        assert poll(lambda: ending.done() or len(list(tmp_path.glob("there-*"))) == RANKS, 40)
        assert not ending.done(), ending.result().output
        bed.disconnect("h1")
        (tmp_path / "cut").touch()
        try:
            result = ending.result()
        finally:
            bed.connect("h1")
    assert result.returncode != 0, result.output
