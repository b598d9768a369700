"""Kubeflow's PyTorchJob, whose RANK may be the number of a pod."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.env import Env
from cpudist.launchers.launcher import Placement
from cpudist.launchers.mpis import MPIS


class PyTorchJobPod(Env):
    """The operator sets RANK to the pod's index, but WORLD_SIZE to the number of pods times nprocPerNode.

    With several processes in a pod, mpirun inside the pod numbers them. torchrun in a pod sets RANK anew, so its ranks
    are not recognised as a PyTorchJob's.
    """

    name = "pytorchjob"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "PET_NNODES" in variables or "PET_NODE_RANK" in variables  # the operator sets them for torchrun

    def placement(self) -> Placement:
        if "PET_NNODES" in self._variables and not self._variables.get("RANK"):  # a TrainJob, or an elastic PyTorchJob
            raise UserError(
                "this pod sets PET_NNODES and other variables for torchrun, but no RANK: start it with torchrun"
            )
        if "LOCAL_RANK" in self._variables:  # a script has set RANK to the number of a process
            return super().placement()
        self._require_all()
        inner = next((mpi(self._variables) for mpi in MPIS if mpi.detect(self._variables)), None)
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
        """Compute the rank from the pod's index and the rank inside the pod."""
        processes = self._processes_per_pod()
        if processes not in (None, inner.size):
            raise UserError(
                f"this PyTorchJob has nprocPerNode {processes}, but {launcher} started {inner.size} processes in"
                f" the pod: start it with -n {processes}, or set nprocPerNode to {inner.size}"
            )
        if inner.local_size not in (None, inner.size):
            raise UserError(
                f"{launcher} started {inner.size} processes of which only {inner.local_size} are in this pod: start"
                " each pod's own processes, without a hostfile; for mpirun across pods use an MPIJob"
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
        """Return nprocPerNode; None for "auto", "cpu" and the like, with which WORLD_SIZE is the number of pods."""
        text = self._variables.get("PET_NPROC_PER_NODE", "")
        return int(text) if text.isdigit() else None
