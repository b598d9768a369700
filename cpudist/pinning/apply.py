"""Pin this rank: its affinity mask, the number of its threads, the allocator and the memory policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cpudist.changes import Changes
from cpudist.console import say
from cpudist.environments import Environment
from cpudist.errors import UserError
from cpudist.machine.cpulist import format_list
from cpudist.machine.description import this_machine
from cpudist.pinning import threads
from cpudist.pinning.launcher import find_launcher
from cpudist.pinning.preload import OpenMP, start_again, to_preload
from cpudist.pinning.share import own_share
from cpudist.pinning.tasks import tasks
from cpudist.pinning.wishes import wishes_of
from cpudist.placement.openmp import THREADS
from cpudist.placement.plan import RankPlan


@dataclass(frozen=True)
class Pinning:
    """What is this rank's.

    Attributes:
        plan: its cores and threads.
        bound: whether its mask is to be that of the plan, and after `bind` whether it is.
        stay: its threads that somebody else has placed, and `bind` has left there.
        ticks_before: the CPU time that its threads had used before `bind`, in clock ticks.
    """

    plan: RankPlan
    bound: bool
    stay: frozenset[int] = frozenset()
    ticks_before: Mapping[int, int] = field(default_factory=dict)

    def bind(self, changes: Changes) -> Pinning:
        """Move the process to its cores, if it is to be bound; what was done is taken back by `changes`."""
        threads.keep_data_cores(len(self.plan.data_cpus), changes)
        bound, stay = self.bound, self.stay
        ticks_before = {task.number: task.ticks for task in tasks()}
        if bound:
            try:
                stay |= threads.bind(self.plan, changes)
            except OSError as error:  # the cpuset has changed since it was read
                cpus = format_list(self.plan.mask)
                say(f"warning: local rank {self.plan.rank} cannot be pinned to the CPUs {cpus}: {error.strerror}")
                bound = False
        return replace(self, bound=bound, stay=stay, ticks_before=ticks_before)

    def settle(self, changes: Changes) -> None:
        """Give every thread its own cores, once the job's own threads run and before computing ones do."""
        if self.bound:
            threads.settle(self.plan, changes)


def pin(environment: Environment, arguments: Sequence[str], openmp: OpenMP = "torch") -> Pinning | None:
    """Pin this process, which must not have imported torch or touched MPI. It may start once more.

    Args:
        environment: what started it.
        arguments: the words of the command line, which may say how many processes load data.
        openmp: the runtime that torch is to compute with.

    Returns:
        What it was given; None where nothing was done, because its launcher does not say how many ranks share the node.

    Raises:
        UserError: the OpenMP that is asked for cannot be had on this host.
    """
    if libraries := to_preload(os.environ, openmp):
        start_again(libraries)
    pinning = decide(environment, arguments)
    if pinning is None:
        return None
    os.environ[THREADS] = str(pinning.plan.omp_threads)
    return pinning.bind(Changes())  # for good: this process is the job's


def decide(environment: Environment, arguments: Sequence[str], chosen_threads: int | None = None) -> Pinning | None:
    """What of this node is this rank's; see `pin`. Nothing is changed.

    Args:
        chosen_threads: how many threads the script has told torch to compute with, if it has.
    """
    try:
        placement = environment.placement()
    except UserError:  # the job's start says so, to everybody and in order
        return None
    if placement.local_rank is None or placement.local_size is None:
        if placement.size > 1:
            _say(environment, f"ranks are not pinned: {environment.name} does not say how many share a node")
            return None
        rank, ranks = 0, 1
    else:
        rank, ranks = placement.local_rank, placement.local_size
    launcher = find_launcher(environment.rank_variable)
    wishes = wishes_of(environment, arguments, launcher, placement.size > 1)
    if chosen_threads is not None:
        wishes = replace(wishes, omp_threads=chosen_threads, threads_variable="torch.set_num_threads")
    try:
        share = own_share(this_machine(), launcher.cpus, rank, ranks, wishes)
    except UserError as error:
        _say(environment, f"ranks are not pinned: {error}")
        return None
    if share.hint:
        _say(environment, share.hint)
    return Pinning(share.plan, share.bind)


def _say(environment: Environment, line: str) -> None:
    if environment.speaks:
        say(f"warning: {line}")
