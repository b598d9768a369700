"""Kubeflow's PyTorchJob: a pod's RANK may be that of a node."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.environments.base import Environment, Placement
from cpudist.environments.intel_mpi import IntelMpi
from cpudist.environments.mpich import Mpich
from cpudist.environments.openmpi import OpenMpi
from cpudist.environments.variables import Variables
from cpudist.errors import UserError

# What may start several processes inside one pod (torchrun sets RANK anew and is an environment in its own right).
_INSIDE_A_POD: tuple[type[Environment], ...] = (IntelMpi, Mpich, OpenMpi)


class PyTorchJob(Variables):
    """The operator sets RANK to the pod's index but WORLD_SIZE to pods times nprocPerNode: with several processes in a
    pod RANK is the rank of a node, and a launcher inside the pod has to tell the processes apart.
    """

    name = "pytorchjob"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "PET_NNODES" in variables or "PET_NODE_RANK" in variables  # the operator's mark, meant for torchrun

    def placement(self) -> Placement:
        if "PET_NNODES" in self._variables and not self._variables.get("RANK"):  # a TrainJob, or an elastic PyTorchJob
            raise UserError(
                "this pod sets PET_NNODES and other variables for torchrun, but no RANK: start it with torchrun"
            )
        if "LOCAL_RANK" in self._variables:  # a script has done the arithmetic: RANK is that of a process
            return super().placement()
        self._require_all()
        inner = next((one(self._variables) for one in _INSIDE_A_POD if one.detect(self._variables)), None)
        return self._one_process_per_pod() if inner is None else self._combined(inner.placement(), inner.name)

    def _one_process_per_pod(self) -> Placement:
        processes = self._processes_per_pod()
        if processes is not None and processes > 1:
            raise UserError(
                f"this PyTorchJob has nprocPerNode {processes}, and its RANK is that of a pod: start the processes"
                f" in the pod with `torchrun` or `mpirun -n {processes}`, or set nprocPerNode to 1"
            )
        rank, size = self.integer("RANK"), self.integer("WORLD_SIZE")
        return Placement(rank, size, local_rank=0, local_size=1, node_rank=rank, node_count=size)

    def _combined(self, inner: Placement, launcher: str) -> Placement:
        """The pod's index and the rank inside the pod make one rank."""
        processes = self._processes_per_pod()
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
        node_rank = self.integer("RANK")
        node_count = self.integer("WORLD_SIZE") // (processes or 1)
        return Placement(
            rank=node_rank * inner.size + inner.rank,
            size=node_count * inner.size,
            local_rank=inner.rank,
            local_size=inner.size,
            node_rank=node_rank,
            node_count=node_count,
        )

    def _processes_per_pod(self) -> int | None:
        """None for "auto", "cpu" and the like: the operator then counts pods in WORLD_SIZE."""
        text = self._variables.get("PET_NPROC_PER_NODE", "")
        return int(text) if text.isdigit() else None
