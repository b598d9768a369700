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

_OWN_OPTION, _TRAINERS = "data_workers", "dataloader_num_workers"


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
    """How many processes load data: cpudist-train's --data-workers, or Trainer's dataloader_num_workers, as far as that
    stands on the command line or in a file of arguments.

    Args:
        arguments: all words of the command, the script's or recipe's name among them.
    """
    for name in (_OWN_OPTION, _TRAINERS):
        if (value := _option(arguments, name)).isdecimal():
            return int(value)
    # TRL's parser takes the file of --config, HfArgumentParser one that stands alone behind the script.
    alone = arguments[-1] if len(arguments) > 1 and not arguments[-2].startswith("-") else ""
    return _from_file(Path(_option(arguments, "config") or alone))


def _option(arguments: Sequence[str], wanted: str) -> str:
    """The value of `--wanted VALUE` or `--wanted=VALUE`; empty where there is none."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == f"__{wanted}":
            return value if equals else following
    return ""


def _from_file(path: Path) -> int:
    if path.suffix not in (".json", ".yaml", ".yml"):
        return 0
    from ruamel.yaml import YAML  # late: most jobs have no such file
    from ruamel.yaml.error import YAMLError

    load = json.loads if path.suffix == ".json" else YAML(typ="safe").load
    try:
        number = load(path.read_text(encoding="utf-8"))[_TRAINERS]
    except (OSError, ValueError, LookupError, TypeError, YAMLError):  # the script will say what is wrong with it
        return 0
    return number if isinstance(number, int) and number > 0 else 0
