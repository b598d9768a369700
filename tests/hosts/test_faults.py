"""Jobs over two hosts that something happens to; scripts/faults.sh tries all of it under each MPI."""

from __future__ import annotations

import re
import shutil

import pytest
from hosts import faults

TIMEOUT = 15.0
# Hydra, of Intel MPI and MPICH, ends a job by itself once a rank is killed, now and then before it has passed on what
# the ranks wrote. Its own words name the host and the signal.
LOST = r"cpudist: rank 3 on h1 ended without a word|RUNNING AT h1\b(.|\n)*(EXIT CODE|SIGNAL): 9\b"


@pytest.mark.parametrize(
    ("fault", "mpi", "launch", "said"),
    [
        ("rank 3 killed", "intel-mpi", False, LOST),
        ("rank 3 out of memory", "mpich", False, LOST),
        ("rank 3 stopped", "mpich", False, r"cpudist: .*rank 3 \(h1\) does not answer"),
        ("rank 3 stuck in Python", "open-mpi", False, r"cpudist: .*rank 3 \(h1\) never reached all_reduce #"),
        ("link of h1 down", "intel-mpi", False, "cpudist: .*on h1 cannot be reached any more"),
        ("h1 loses its power", "open-mpi", True, "cpudist: .*on h1 cannot be reached any more"),
        ("strangers flood the store", "mpich", False, ""),
    ],
)
def test_it_is_over_everywhere_in_time(fault: str, mpi: str, launch: bool, said: str) -> None:
    if shutil.which({"mpich": "mpirun.mpich", "open-mpi": "mpirun.openmpi"}.get(mpi, "sh")) is None:
        pytest.skip(f"{mpi} is not installed")
    outcome = faults.run(faults.Way(mpi, launch), fault, TIMEOUT)
    assert outcome.is_right(fault, TIMEOUT), f"{outcome}\n{outcome.output}"
    assert re.search(said, outcome.output), outcome.output
