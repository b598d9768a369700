"""Jobs over two hosts that something happens to; scripts/faults.sh tries all of it under each MPI."""

import re

import faults
import pytest
from mpis import require

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("possible")]

TIMEOUT = 10.0
LOST = "^cpudist: rank 3 on h1 ended without an error message"
UNREACHABLE = "^cpudist: .*on h1 cannot be reached any more"


@pytest.mark.parametrize(
    ("fault", "mpi", "launch", "said"),
    [
        ("rank 3 killed", "intel", False, LOST),
        ("rank 3 out of memory", "mpich", False, LOST),
        ("rank 3 stopped", "mpich", False, r"^cpudist: .*rank 3 \(h1\) does not answer"),
        ("rank 3 stuck in Python", "openmpi", False, r"^cpudist: .*rank 3 \(h1\) never reached all_reduce #"),
        ("link of h1 down", "intel", False, UNREACHABLE),
        pytest.param("link of h1 down", "openmpi", False, UNREACHABLE, marks=pytest.mark.long),
        ("h1 loses its power", "openmpi", True, UNREACHABLE),
        ("launch's ssh to h1 lost", "intel", True, "warning: the ssh connection to h1 was lost; connecting again$"),
    ],
)
def test_it_is_over_everywhere_in_time(fault: str, mpi: str, launch: bool, said: str) -> None:
    require(mpi)
    for _ in range(3):
        ending = faults.run(faults.Way(mpi, launch), fault, TIMEOUT)
        assert ending.is_right(fault, TIMEOUT), f"{ending}\n{ending.output}"
        # Hydra kills all ranks at once, and about once in ten jobs it ends before our line is out. Its own words then
        # name the host.
        if not re.search("BAD TERMINATION|was killed by", ending.output) or re.search(
            said, ending.output, re.MULTILINE
        ):
            break
    assert re.search(said, ending.output, re.MULTILINE), ending.output
