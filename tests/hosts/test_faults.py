"""Jobs over two hosts that something happens to; scripts/faults.sh tries all of it under each MPI."""

from __future__ import annotations

import re
import shutil

import pytest
from hosts import faults

TIMEOUT = 15.0
# MPICH's launcher ends a job by itself once a rank is killed, now and then before it has passed on what the ranks wrote
# (its proxy then fails an assertion, `!closed`). Its own words name the host and the signal.
MPICH_SAYS = r"RUNNING AT h1\b(.|\n)*EXIT CODE: 9\b"


@pytest.mark.parametrize(
    ("fault", "mpi", "launch", "said"),
    [
        ("rank 3 killed", "intel-mpi", False, "rank 3 on h1 ended without a word"),
        ("rank 3 out of memory", "mpich", False, "rank 3 on h1 ended without a word"),
        ("rank 3 stopped", "mpich", False, "rank 3 (h1) does not answer"),
        ("rank 3 stuck in Python", "open-mpi", False, "rank 3 (h1) never reached all_reduce #"),
        ("link of h1 down", "intel-mpi", False, "on h1 cannot be reached any more"),
        ("h1 loses its power", "open-mpi", True, "on h1 cannot be reached any more"),
        ("strangers flood the store", "mpich", False, ""),
    ],
)
def test_it_is_over_everywhere_in_time(fault: str, mpi: str, launch: bool, said: str) -> None:
    if shutil.which({"mpich": "mpirun.mpich", "open-mpi": "mpirun.openmpi"}.get(mpi, "sh")) is None:
        pytest.skip(f"{mpi} is not installed")
    outcome = faults.run(faults.Way(mpi, launch), fault, TIMEOUT)
    assert outcome.is_right(fault, TIMEOUT), f"{outcome}\n{outcome.output}"
    named = said in "\n".join(outcome.said) or (mpi == "mpich" and re.search(MPICH_SAYS, outcome.output))
    assert named, outcome.output
