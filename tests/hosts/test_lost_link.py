"""A host's link is lost, the ranks have ended: what their launchers would leave on both sides is gone as well."""

from __future__ import annotations

import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bed import Bed

from cpudist.waiting import poll

SCRIPT = Path(__file__).parent / "checks" / "link_lost.py"
RANKS = 4


def launch(mpi: str, bed: Bed) -> list[str]:
    hydra = ["-f", bed.hostfile(), "-n", str(RANKS), "-ppn", "2"]
    openmpi = ["--allow-run-as-root", "--hostfile", bed.hostfile(2), "-n", str(RANKS), "-x", "PATH", "-x", "PYTHONPATH"]
    library = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
    commands = {
        "intel-mpi": ["mpirun", *hydra],
        "mpich": ["mpirun.mpich", *hydra],
        "open-mpi": ["mpirun.openmpi", *openmpi, "-x", f"MPI4PY_LIBMPI={library}"],
    }
    if mpi != "intel-mpi" and shutil.which(commands[mpi][0]) is None:
        pytest.skip(f"{commands[mpi][0]} is not installed")
    return commands[mpi]


@pytest.mark.parametrize("mpi", ["intel-mpi", "mpich", "open-mpi"])
def test_nothing_is_left_on_either_side_of_a_lost_link(own_bed: Bed, tmp_path: Path, mpi: str) -> None:
    """`Bed.run` fails the test when mpirun does not return, or when a process of the job is left on any host."""
    command = [*launch(mpi, own_bed), sys.executable, str(SCRIPT), str(tmp_path)]
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(own_bed.run, "h0", command, 60)
        assert poll(lambda: ending.done() or len(list(tmp_path.glob("there-*"))) == RANKS, 40)
        assert not ending.done(), ending.result().output
        own_bed.disconnect("h1")
        (tmp_path / "cut").touch()
        result = ending.result()
    assert result.returncode != 0, result.output
