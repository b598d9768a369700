"""Apply a pinning to this rank after torch was imported."""

import os

from cpudist.launchers import Launcher
from cpudist.patching.undo import Changes
from cpudist.pinning import Pinning, decide
from cpudist.pinning.plan import BINDING, THREADS, threads_set
from cpudist.topology.machine import this_machine

_BY_SCRIPT = "torch.set_num_threads"


def decide_in_place(launcher: Launcher) -> Pinning | None:
    """Return the pinning for a script that calls `cpudist.init` itself; None if it must not be pinned.

    The script's own number of threads is kept. A variable that makes OpenMP bind its threads prevents pinning: the
    import of torch has then narrowed this process's mask, so the usable CPUs are unknown.
    """
    if any(name in os.environ for name in BINDING):
        return None
    return decide(launcher, _chosen_threads())


def apply_pinning(pinning: Pinning, changes: Changes) -> Pinning:
    """Move this rank's threads to its cores and set torch's number of threads, until `changes` are undone."""
    import torch

    changes.variable(THREADS, str(pinning.plan.omp_threads))  # for child processes of the rank
    before = torch.get_num_threads()
    if before != pinning.plan.omp_threads:
        torch.set_num_threads(pinning.plan.omp_threads)
        changes.then(lambda: torch.set_num_threads(before))
    return pinning.bind(changes)


def _chosen_threads() -> tuple[int, str] | None:
    """Return torch's number of threads and its source; None if it is torch's default or a variable has set it."""
    import torch

    found = torch.get_num_threads()
    given = threads_set(os.environ)
    if given is None:
        usable = this_machine().usable
        return None if found in (len(usable.cpus), len(usable.cores)) else (found, _BY_SCRIPT)
    number, variable = given
    if found == number:
        return None
    # If torch is built with MKL, MKL lowers the variable's value to the machine's number of cores.
    lowered = found == len(this_machine().topology.cores) < number
    return found, variable if lowered else _BY_SCRIPT
