"""Kubeflow's PyTorchJob, and plain env://: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set from outside."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.base import Launcher, Placement, Rendezvous
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpich import Mpich
from cpudist.launchers.openmpi import OpenMpi
from cpudist.launchers.slurm import Slurm

# What may start several processes inside one pod (torchrun sets RANK anew and is a launcher in its own right).
_INSIDE_A_POD: tuple[type[Launcher], ...] = (IntelMpi, Mpich, OpenMpi)


class PyTorchJob(Launcher):
    """The operator sets RANK to the pod's index but WORLD_SIZE to pods times nprocPerNode: with several processes in a
    pod RANK is the rank of a node, and a launcher inside the pod has to tell the processes apart.

    Variables that were set by hand or by a script are read the same way; they need no PET_ variables and no local rank.
    """

    name = "pytorchjob"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        if "PET_NNODES" in env or "PET_NODE_RANK" in env:  # the operator's mark, meant for torchrun
            return True
        # By hand: scripts like to set these under mpirun and srun too, which know better.
        others: tuple[type[Launcher], ...] = (*_INSIDE_A_POD, Slurm)
        return ("RANK" in env or "WORLD_SIZE" in env) and not any(other.detect(env) for other in others)

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        _require_all(env)
        inner = next((launcher for launcher in _INSIDE_A_POD if launcher.detect(env)), None)
        # A local rank means that RANK is a process already: a script has done the arithmetic, or cpudist.init has.
        if "LOCAL_RANK" in env or not cls._in_pod(env):
            return cls._as_given(env)
        if inner is None:
            return cls._one_process_per_pod(env)
        return cls._combined(env, inner.placement(env), inner.name)

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        return "env"

    @classmethod
    def _in_pod(cls, env: Mapping[str, str]) -> bool:
        return "PET_NODE_RANK" in env or "PET_NNODES" in env

    @classmethod
    def _as_given(cls, env: Mapping[str, str]) -> Placement:
        return Placement(
            rank=cls.integer(env, "RANK"),
            size=cls.integer(env, "WORLD_SIZE"),
            local_rank=cls.optional_integer(env, "LOCAL_RANK"),
            local_size=cls.optional_integer(env, "LOCAL_WORLD_SIZE"),
        )

    @classmethod
    def _one_process_per_pod(cls, env: Mapping[str, str]) -> Placement:
        processes = cls._processes_per_pod(env)
        if processes is not None and processes > 1:
            raise UserError(
                f"this PyTorchJob has nprocPerNode {processes}, and its RANK is that of a pod: start the processes"
                f" in the pod with `torchrun` or `mpirun -n {processes}`, or set nprocPerNode to 1"
            )
        rank, size = cls.integer(env, "RANK"), cls.integer(env, "WORLD_SIZE")
        return Placement(rank, size, local_rank=0, local_size=1, node_rank=rank, node_count=size)

    @classmethod
    def _combined(cls, env: Mapping[str, str], inner: Placement, launcher: str) -> Placement:
        """The pod's index and the rank inside the pod make one rank."""
        processes = cls._processes_per_pod(env)
        if processes not in (None, inner.size):
            raise UserError(
                f"this PyTorchJob has nprocPerNode {processes}, but {launcher} started {inner.size} processes in"
                f" the pod: start it with -n {processes}, or set nprocPerNode to {inner.size}"
            )
        if inner.local_size not in (None, inner.size):
            raise UserError(
                f"{launcher} started {inner.size} processes of which only {inner.local_size} are in this pod: inside a"
                " PyTorchJob start each pod's own processes, without a hostfile; for mpirun across pods use an MPIJob"
            )
        node_rank = cls.integer(env, "RANK")
        node_count = cls.integer(env, "WORLD_SIZE") // (processes or 1)
        return Placement(
            rank=node_rank * inner.size + inner.rank,
            size=node_count * inner.size,
            local_rank=inner.rank,
            local_size=inner.size,
            node_rank=node_rank,
            node_count=node_count,
        )

    @classmethod
    def _processes_per_pod(cls, env: Mapping[str, str]) -> int | None:
        """None for "auto", "cpu" and the like: the operator then counts pods in WORLD_SIZE."""
        text = env.get("PET_NPROC_PER_NODE", "")
        return int(text) if text.isdigit() else None


def _require_all(env: Mapping[str, str]) -> None:
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if not missing:
        return
    if "PET_NNODES" in env and "RANK" in missing:  # a TrainJob, or an elastic PyTorchJob
        raise UserError(
            "this pod sets PET_NNODES and other variables for torchrun, but no RANK: start it with torchrun"
        )
    given = "RANK" if env.get("RANK") else "WORLD_SIZE"
    raise UserError(
        f"{given} is set but {' and '.join(missing)} is not: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT,"
        f" or unset {given} to run alone"
    )
