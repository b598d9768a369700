"""torch and the threads of this rank follow its pinning, also where the script is running already."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from cpudist.changes import Changes
from cpudist.environments import Environment
from cpudist.machine.description import this_machine
from cpudist.pinning import Pinning, decide
from cpudist.placement import openmp

if TYPE_CHECKING:
    from cpudist.placement.plan import RankPlan


def decide_in_place(environment: Environment) -> Pinning | None:
    """What is this rank's, for a script that calls `cpudist.init` itself; None where it is to be left as it is.

    A number of threads that the script has chosen stays. Where OpenMP was told to bind threads, it did so when torch
    was imported, and this process no longer shows which CPUs it was given.
    """
    if any(name in os.environ for name in openmp.BINDING):
        return None
    return decide(environment, sys.argv, _chosen_threads())


def follow(pinning: Pinning, changes: Changes) -> Pinning:
    """Move this rank's threads to its cores and have torch compute with as many as planned; `changes` takes it back."""
    import torch

    changes.variable(openmp.THREADS, str(pinning.plan.omp_threads))  # for processes that the rank starts
    before = torch.get_num_threads()
    if before != pinning.plan.omp_threads:
        torch.set_num_threads(pinning.plan.omp_threads)
        changes.then(lambda: torch.set_num_threads(before))
    return pinning.bind(changes)


def limit_inter_op(plan: RankPlan) -> None:
    """Set torch's inter-op threads, unless the script has: torch takes a number only once."""
    import torch

    with contextlib.suppress(RuntimeError):  # set already, or at work already
        torch.set_num_interop_threads(plan.interop_threads)


def _chosen_threads() -> int | None:
    """How many threads the script has told torch to use; None where the number is torch's own choice."""
    import torch

    found = torch.get_num_threads()
    told = openmp.threads_set(os.environ)
    if told is not None:
        return None if found == told[0] else found
    usable = this_machine().usable
    return None if found in (len(usable.cpus), len(usable.cores)) else found
