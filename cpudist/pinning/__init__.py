"""Plan the cores on which each rank of a node computes, and bind this rank to its part of the plan.

This package must not import torch, MPI or jobs.
"""

import os
from collections.abc import Mapping

from cpudist.console import say
from cpudist.errors import UserError
from cpudist.launchers import Launcher
from cpudist.patching.undo import Changes
from cpudist.pinning.plan import BINDING, THREADS, PlanOptions, threads_set
from cpudist.pinning.preload import preload_allocator
from cpudist.pinning.rank_cpus import Pinning, Starter, own_share, starter_of
from cpudist.topology.machine import this_machine

__all__ = ["Pinning", "decide", "decide_in_place", "pin", "preload_allocator"]


def pin(launcher: Launcher) -> Pinning | None:
    """Pin this process, before it imports torch or uses MPI. The process may be executed once more.

    Return its CPUs and threads; None if it is not pinned, for example if the number of ranks on the node is unknown.
    """
    preload_allocator()
    pinning = decide(launcher)
    if pinning is None:
        return None
    os.environ[THREADS] = str(pinning.plan.omp_threads)
    return pinning.bind(Changes())  # never undone: the process ends with the job


def decide_in_place(launcher: Launcher, threads: int) -> Pinning | None:
    """Return the pinning for a script that calls `cpudist.init` itself; None if it must not be pinned.

    `threads` is torch's number of threads, which is kept if the script has set it. A variable that makes OpenMP bind
    threads prevents pinning: importing torch has narrowed this process's mask, so the usable CPUs are unknown.
    """
    return None if any(name in os.environ for name in BINDING) else decide(launcher, _chosen(threads))


def decide(launcher: Launcher, chosen_threads: tuple[int, str] | None = None) -> Pinning | None:
    """Return the CPUs and threads that `pin` would assign to this rank; change nothing.

    `chosen_threads` is torch's number of threads and its origin; None: read from the environment.
    """
    try:
        placement = launcher.placement()
    except UserError:  # the start of the job reports this error
        return None
    if placement.local_rank is None or placement.local_size is None:
        if placement.size > 1:
            _warn(launcher, f"ranks are not pinned: {launcher.name} does not say how many share a node")
            return None
        rank, ranks = 0, 1
    else:
        rank, ranks = placement.local_rank, placement.local_size
    starter = starter_of(launcher.rank_variable)
    chosen = chosen_threads or threads_of_user(launcher, os.environ, starter)
    user_threads, variable = chosen or (None, THREADS)
    options = PlanOptions(ranks, user_threads, variable)
    try:
        pinning = own_share(this_machine(), starter.cpus, rank, ranks, options)
    except UserError as error:
        _warn(launcher, f"ranks are not pinned: {error}")
        return None
    if pinning.hint:
        _warn(launcher, pinning.hint)
    return pinning


def threads_of_user(launcher: Launcher, variables: Mapping[str, str], starter: Starter) -> tuple[int, str] | None:
    """Return the number of threads that the user has set, and its variable; None if the user has set none.

    If OMP_NUM_THREADS is not set, torchrun sets it to 1 on any machine. This 1 is ignored.
    """
    found = threads_set(variables)
    by_torchrun = launcher.name == "torchrun" and THREADS not in (starter.variables or {})
    return None if found == (1, THREADS) and by_torchrun else found


def _chosen(threads: int) -> tuple[int, str] | None:
    """Return torch's number of threads and its source; None if it is torch's default or a variable has set it."""
    machine = this_machine()
    number, variable = threads_set(os.environ) or (None, "")
    if threads == number or (number is None and threads in (len(machine.usable.cpus), len(machine.usable.cores))):
        return None
    # If torch is built with MKL, MKL lowers the variable's value to the machine's number of cores.
    lowered = number is not None and threads == len(machine.topology.cores) < number
    return threads, variable if lowered else "torch.set_num_threads"


def _warn(launcher: Launcher, line: str) -> None:
    if launcher.is_main_process:
        say(f"warning: {line}")
