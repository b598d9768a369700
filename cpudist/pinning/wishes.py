"""What a person has said about this rank's threads and data loading: in variables, on the command line, in a file."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpudist.environments import Environment
from cpudist.pinning.launcher import Launcher
from cpudist.placement.openmp import THREADS, threads_set
from cpudist.placement.plan import Wishes

_DATA_WORKERS = "dataloader_num_workers"


def wishes_of(environment: Environment, arguments: Sequence[str], launcher: Launcher, several: bool) -> Wishes:
    """What the plan has to respect; `several` says whether there are other ranks in the job."""
    threads, variable = threads_of_person(environment, os.environ, launcher) or (None, THREADS)
    return Wishes(
        data_workers=data_workers(arguments), omp_threads=threads, threads_variable=variable, communicates=several
    )


def threads_of_person(
    environment: Environment, variables: Mapping[str, str], launcher: Launcher
) -> tuple[int, str] | None:
    """The number of threads that a person has set, and in which variable.

    torchrun sets OMP_NUM_THREADS to 1, whatever the machine, where nobody has.
    """
    found = threads_set(variables)
    by_torchrun = environment.name == "torchrun" and THREADS not in (launcher.variables or {})
    return None if found == (1, THREADS) and by_torchrun else found


def data_workers(arguments: Sequence[str]) -> int:
    """Trainer's dataloader_num_workers, as far as it stands on the command line or in a JSON file of arguments."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.replace("-", "_").partition("=")
        if name == f"__{_DATA_WORKERS}" and (value or following).isdecimal():
            return int(value or following)
    if len(arguments) == 1 and arguments[0].endswith(".json"):  # HfArgumentParser's rule
        return _from_file(Path(arguments[0]))
    return 0


def _from_file(path: Path) -> int:
    try:
        number = json.loads(path.read_text(encoding="utf-8"))[_DATA_WORKERS]
    except (OSError, ValueError, LookupError, TypeError):  # the script will say what is wrong with it
        return 0
    return number if isinstance(number, int) and number > 0 else 0
