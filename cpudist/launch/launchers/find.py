"""Looks for a launcher: first in this Python's own environment, then on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist.errors import UserError
from cpudist.launch.launchers.base import Launcher
from cpudist.launch.launchers.intel import Intel
from cpudist.launch.launchers.mpich import Mpich
from cpudist.launch.launchers.openmpi import OpenMpi

MPIS: dict[str, type[Launcher]] = {"intel": Intel, "mpich": Mpich, "openmpi": OpenMpi}

_NAMES = ("mpirun", "mpiexec", "mpirun.mpich", "mpirun.openmpi", "mpiexec.hydra")
_ANSWER_SECONDS = 15.0


def find_launcher(mpi: str, variables: Mapping[str, str] = os.environ, own: Path | None = None) -> Launcher:
    """Return the first launcher that is there, or the first of the MPI that was asked for.

    Args:
        mpi: "auto", "intel", "mpich" or "openmpi".
        variables: the environment, for its PATH.
        own: the folder to look in first; None: that of this Python's interpreter.

    Raises:
        UserError: there is none.
    """
    seen = []
    for program in _candidates(variables, own or Path(sys.executable).parent):
        found = identify(program)
        if found is not None and mpi in ("auto", _name(found)):
            return found
        seen.append(f"{program} is {_name(found) if found else 'of an unknown MPI'}")
    wanted = "an MPI" if mpi == "auto" else f"--mpi {mpi}"
    raise UserError(
        f"no mpirun of {wanted} was found ({'; '.join(seen) or 'there is none at all'}); pip install 'cpudist[ccl]' "
        "brings Intel MPI's, Debian's packages are mpich and openmpi-bin; or put its folder on PATH"
    )


def identify(program: Path) -> Launcher | None:
    """The launcher that this program is, going by what it says to ``--version``; None where it is none that we know."""
    # Intel MPI's mpirun is a script that asks the first mpiexec.hydra on PATH.
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
    return next((kind(program, version) for kind in MPIS.values() if kind.answers(version)), None)


def _candidates(variables: Mapping[str, str], own: Path) -> Iterator[Path]:
    """Each program once, by what it leads to: Debian's mpirun is a chain of links."""
    given = set()
    for folder in (own, *map(Path, variables.get("PATH", os.defpath).split(os.pathsep))):
        for name in _NAMES:
            program = folder / name
            if os.access(program, os.X_OK) and program.is_file() and program.resolve() not in given:
                given.add(program.resolve())
                yield program


def _name(launcher: Launcher) -> str:
    return next(name for name, kind in MPIS.items() if isinstance(launcher, kind))
