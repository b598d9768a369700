"""The MPI libraries that cpudist supports, and a search for their mpirun."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.errors import UserError
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import MpiLauncher, Mpirun
from cpudist.launchers.mpich import Mpich
from cpudist.launchers.openmpi import OpenMpi
from cpudist.launchers.pals import Pals

# Intel MPI comes first, because its ranks have all of MPICH's variables and more.
MPIS: tuple[type[MpiLauncher], ...] = (IntelMpi, Mpich, OpenMpi, Pals)
MPI_BY_OPTION = {mpi.option: mpi for mpi in MPIS}

_PROGRAMS = tuple(dict.fromkeys(program for mpi in MPIS for program in mpi.programs))
_ANSWER_SECONDS = 15.0


def find_mpirun(option: str, variables: Mapping[str, str] = os.environ) -> Mpirun:
    """Return the first mpirun of --mpi `option`, in this environment or on PATH; otherwise raise `UserError`."""
    seen = []
    for program in _candidates(variables):
        found = identify(program)
        if found is not None and option in ("auto", found.mpi.option):
            return found
        seen.append(f"{program} is {found.mpi.option if found else 'of an unknown MPI'}")
    wanted = "an MPI" if option == "auto" else f"--mpi {option}"
    remedy = "pip install 'cpudist[ccl]' for MPICH's, 'cpudist[impi]' for Intel's, or put its folder on PATH"
    raise UserError(f"no mpirun of {wanted} was found ({'; '.join(seen) or 'there is none at all'}); {remedy}")


def identify(program: Path) -> Mpirun | None:
    """Return the MPI that a program belongs to, from its answer to `--version`; None: unknown."""
    # Intel MPI's mpirun is a script that runs the first mpiexec.hydra on PATH, so put the program's folder first.
    path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    try:
        asked = subprocess.run(
            [str(program), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
            env={**os.environ, "PATH": path},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = asked.stdout + asked.stderr
    return next((Mpirun(mpi, program, version) for mpi in MPIS if mpi.recognises(version)), None)


def _candidates(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield each program once: Debian's mpirun is a symbolic link to mpirun.mpich or mpirun.openmpi."""
    given = set()
    for folder in (Path(sys.executable).parent, *map(Path, variables.get("PATH", os.defpath).split(os.pathsep))):
        for name in _PROGRAMS:
            program = folder / name
            if os.access(program, os.X_OK) and program.is_file() and program.resolve() not in given:
                given.add(program.resolve())
                yield program
