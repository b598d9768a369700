"""The user's settings of this rank's threads and data loading: in variables, on the command line, in a file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpudist.launchers import Launcher
from cpudist.pinning.rank_cpus import Starter
from cpudist.topology.thread_variables import THREADS, threads_set

_OWN_OPTION, _TRAINERS = "data_workers", "dataloader_num_workers"
# In JSON, or at the top of YAML. No parser of YAML comes with cpudist.
_IN_A_FILE = re.compile(rf'(?:^|[{{,]\s*)"?{_TRAINERS}"?\s*:\s*(\d+)\b', re.MULTILINE)


def threads_of_user(launcher: Launcher, variables: Mapping[str, str], starter: Starter) -> tuple[int, str] | None:
    """Return the number of threads that the user has set, and its variable; None if the user has set none.

    torchrun sets OMP_NUM_THREADS to 1 on any machine, unless it is set. That is not the user's number.
    """
    found = threads_set(variables)
    by_torchrun = launcher.name == "torchrun" and THREADS not in (starter.variables or {})
    return None if found == (1, THREADS) and by_torchrun else found


def data_workers(arguments: Sequence[str]) -> int:
    """Return the number of data workers: cpudist-train's --data-workers, or Trainer's dataloader_num_workers.

    The latter is read from the command line or from a file of arguments; a number in a script's code is not seen.

    Args:
        arguments: all words of the command, the script's name among them.
    """
    for name in (_OWN_OPTION, _TRAINERS):
        if (value := _option(arguments, name)).isdecimal():
            return int(value)
    # TRL's parser reads the file of --config, HfArgumentParser one that is the script's only argument.
    alone = arguments[-1] if len(arguments) > 1 and not arguments[-2].startswith("-") else ""
    return _from_file(Path(_option(arguments, "config") or alone))


def _option(arguments: Sequence[str], wanted: str) -> str:
    """Return the value of `--wanted VALUE` or `--wanted=VALUE`; empty if there is none."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        if name.replace("-", "_") == f"__{wanted}":
            return value if equals else following
    return ""


def _from_file(path: Path) -> int:
    if path.suffix not in (".json", ".yaml", ".yml"):
        return 0
    try:
        found = _IN_A_FILE.search(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the script reports the fault
        return 0
    return int(found[1]) if found else 0
