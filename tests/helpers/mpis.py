"""The mpirun of each MPI, as users start it by hand on the hosts of a bed."""

import shutil
import sys
from pathlib import Path

import pytest
from bed import Bed

from cpudist.launchers.mpi_launcher import MpiLauncher
from cpudist.launchers.mpis import MPI_BY_OPTION

# Open MPI refuses to start as root, and passes no variables on, unless it is told to.
_PROGRAMS = {
    "intel": [str(Path(sys.executable).with_name("mpirun"))],
    "mpich": ["mpirun.mpich"],
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root"],
}
MPIS = tuple(_PROGRAMS)
_PASSED_ON = ("PATH", "PYTHONPATH", "CPUDIST_CACHE", "CPUDIST_TRANSPORT", "MPI4PY_LIBMPI")


def named(mpi: str) -> type[MpiLauncher]:
    return MPI_BY_OPTION[mpi]


def require(mpi: str) -> None:
    """Skip the test where the mpirun of an MPI is not installed."""
    if shutil.which(_PROGRAMS[mpi][0]) is None:
        pytest.skip(f"{_PROGRAMS[mpi][0]} is not installed")


def mpirun(mpi: str) -> list[str]:
    """Return the command without options; skip the test where it is not installed."""
    require(mpi)
    return _PROGRAMS[mpi]


def mpirun_on(bed: Bed, mpi: str, per_host: int, *variables: str) -> list[str]:
    """Return the command that starts so many ranks on each host of a bed, with these variables of the environment."""
    count = ["-n", str(per_host * len(bed.addresses))]
    if mpi == "openmpi":
        passed_on = [word for name in (*_PASSED_ON, *variables) for word in ("-x", name)]
        return [*mpirun(mpi), "--hostfile", bed.hostfile(per_host), *count, *passed_on]
    return [*mpirun(mpi), "-f", bed.hostfile(), *count, "-ppn", str(per_host)]
