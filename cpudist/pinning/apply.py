"""Pin this rank: its affinity mask, the number of its threads, the allocator and the memory policy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpudist.console import say
from cpudist.environments import Environment
from cpudist.errors import UserError
from cpudist.machine.cpulist import format_list
from cpudist.machine.description import this_machine
from cpudist.machine.memory_policy import allocate_locally
from cpudist.pinning.launcher import Launcher, find_launcher
from cpudist.pinning.preload import start_again, wanted_library
from cpudist.pinning.share import own_share
from cpudist.placement.plan import RankPlan, Wishes

_THREADS = "OMP_NUM_THREADS"
COMMUNICATION_THREAD = "cpudist-ccl"  # csrc/engine.cpp gives it this name


@dataclass(frozen=True)
class Pinning:
    """What this rank was given; `bound` says whether its mask is that of the plan."""

    plan: RankPlan
    bound: bool

    def settle(self) -> None:
        """Give every thread its own cores, once the job's own threads run and before computing ones do."""
        if not self.bound or self.plan.mask == self.plan.cpus:
            return
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().strip() == COMMUNICATION_THREAD and self.plan.communication_cpus:
                os.sched_setaffinity(int(task.name), self.plan.communication_cpus)
        os.sched_setaffinity(0, self.plan.cpus)  # OpenMP's threads come from this one
        if self.plan.data_cpus:
            os.register_at_fork(after_in_child=lambda: os.sched_setaffinity(0, self.plan.mask))


def pin(environment: Environment, arguments: Sequence[str]) -> Pinning | None:
    """Pin this process, which must not have imported torch or touched MPI. It may start once more.

    Args:
        environment: what started it.
        arguments: what the target gets, which may say how many processes load data.

    Returns:
        What it was given; None where nothing was done, because its launcher does not say how many ranks share the node.
    """
    library = wanted_library(os.environ)
    if library is not None:
        start_again(library)
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
    wishes = Wishes(
        data_workers=_data_workers(arguments),
        omp_threads=_threads_of_user(environment, os.environ, launcher),
        communicates=placement.size > 1,
    )
    try:
        share = own_share(this_machine(), launcher.cpus, rank, ranks, wishes)
    except UserError as error:
        _say(environment, f"ranks are not pinned: {error}")
        return None
    if share.hint:
        _say(environment, share.hint)
    os.environ[_THREADS] = str(share.plan.omp_threads)
    return Pinning(share.plan, share.bind and _bind(share.plan))


def _bind(plan: RankPlan) -> bool:
    """Narrow this process's mask and place its memory near."""
    try:
        os.sched_setaffinity(0, plan.mask)
    except OSError as error:  # the cpuset has changed since it was read
        say(f"warning: local rank {plan.rank} cannot be pinned to the CPUs {format_list(plan.mask)}: {error.strerror}")
        return False
    if len(plan.numa_nodes) == 1:
        allocate_locally()  # refused in many containers, where the kernel's default is local as well
    return True


def _threads_of_user(environment: Environment, variables: Mapping[str, str], launcher: Launcher) -> int | None:
    """OMP_NUM_THREADS where a person has set it. torchrun sets it to 1, whatever the machine, where nobody has."""
    text = variables.get(_THREADS, "")
    if not text.isdecimal() or int(text) < 1:
        return None
    by_torchrun = environment.name == "torchrun" and text == "1" and _THREADS not in (launcher.variables or {})
    return None if by_torchrun else int(text)


def _data_workers(arguments: Sequence[str]) -> int:
    """Trainer's --dataloader_num_workers, as far as it stands on the command line."""
    for word, following in itertools.pairwise([*arguments, ""]):
        name, _, value = word.replace("-", "_").partition("=")
        if name == "__dataloader_num_workers" and (value or following).isdecimal():
            return int(value or following)
    return 0


def _say(environment: Environment, line: str) -> None:
    if environment.speaks:
        say(f"warning: {line}")
