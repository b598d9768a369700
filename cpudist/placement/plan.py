"""The plan for the ranks of one node: what was wished for, and who computes where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Part = Literal["socket", "numa", "l3"]


@dataclass(frozen=True)
class Wishes:
    """What the user wants of a plan.

    Attributes:
        ranks: how many ranks, or one for each part of the machine.
        data_workers: processes that load data for each rank (Trainer's dataloader_num_workers).
        smt: compute on all hardware threads of a core, not on one.
        omp_threads: how many threads the user has set, which stays.
        threads_variable: in which variable.
        communicates: whether there are other ranks to exchange messages with.
    """

    ranks: int | Part = "numa"
    data_workers: int = 0
    smt: bool = False
    omp_threads: int | None = None
    threads_variable: str = "OMP_NUM_THREADS"
    communicates: bool = True


@dataclass(frozen=True)
class RankPlan:
    """One rank's share of the node. All CPUs are the operating system's numbers.

    Attributes:
        rank: its number on this node.
        cpus: where it computes: one CPU for each OpenMP thread, unless the user has set another number of threads.
        omp_threads: how many threads compute (OpenMP's, torch's intra-op).
        communication_cpus: for the thread that moves messages while others compute; empty where none can be spared.
        data_cpus: for the processes that load data; empty where none can be spared.
        numa_nodes: the nodes that its cores are near to.
        interop_threads: how many operations of TorchScript may run at the same time (torch's inter-op threads); one,
            since each of them computes on all of the rank's cores.
    """

    rank: int
    cpus: tuple[int, ...]
    omp_threads: int
    communication_cpus: tuple[int, ...] = ()
    data_cpus: tuple[int, ...] = ()
    numa_nodes: tuple[int, ...] = ()
    interop_threads: int = 1

    @property
    def mask(self) -> tuple[int, ...]:
        """All CPUs that the rank and what belongs to it may run on."""
        return tuple(sorted({*self.cpus, *self.communication_cpus, *self.data_cpus}))


@dataclass(frozen=True)
class Plan:
    """The ranks of one node, in the order of their local ranks.

    Attributes:
        idle_cpus: CPUs that may be used and are left alone: second hardware threads, cores beyond a quota.
        pinned: whether ranks are bound to their CPUs. Under a CPU quota that leaves CPUs over they are not: the quota
            limits time, not CPUs, and other containers may have chosen the same ones.
        warnings: one line each.
    """

    ranks: tuple[RankPlan, ...]
    idle_cpus: tuple[int, ...] = ()
    pinned: bool = True
    warnings: tuple[str, ...] = field(default=())

    def to_json(self, environment: dict[str, str], more_warnings: tuple[str, ...] = ()) -> dict[str, Any]:
        """The plan as `cpudist plan --json` prints it."""
        return {
            "ranks": [
                {
                    "rank": rank.rank,
                    "cpus": list(rank.cpus),
                    "omp_threads": rank.omp_threads,
                    "interop_threads": rank.interop_threads,
                    "communication_cpus": list(rank.communication_cpus),
                    "data_cpus": list(rank.data_cpus),
                    "numa_nodes": list(rank.numa_nodes),
                }
                for rank in self.ranks
            ],
            "idle_cpus": list(self.idle_cpus),
            "pinned": self.pinned,
            "environment": environment,
            "warnings": [*self.warnings, *more_warnings],
        }
