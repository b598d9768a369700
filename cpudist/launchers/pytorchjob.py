"""Kubeflow's PyTorchJob, whose RANK may be the number of a pod."""

from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.env import Env
from cpudist.launchers.launcher import Placement
from cpudist.launchers.mpis import MPIS


class PyTorchJobPod(Env):
    """The operator sets RANK to the pod's index, but WORLD_SIZE to the number of pods times nprocPerNode.

    torchrun in a pod sets RANK anew, so its ranks are not recognised as a PyTorchJob's.
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
        if any(mpi.detect(self._variables) for mpi in MPIS):
            raise UserError(
                "mpirun runs in a pod of this PyTorchJob, whose RANK is that of the pod: start the processes in the pod"
                " with torchrun, or make the job an MPIJob"
            )
        # With "auto", "cpu" and the like WORLD_SIZE is the number of pods.
        processes = self._variables.get("PET_NPROC_PER_NODE", "")
        if processes.isdigit() and int(processes) > 1:
            raise UserError(
                f"this PyTorchJob has nprocPerNode {processes}, and its RANK is that of a pod: start the processes"
                " in the pod with torchrun, or set nprocPerNode to 1"
            )
        rank, size = self.integer("RANK"), self.integer("WORLD_SIZE")
        return Placement(rank, size, local_rank=0, local_size=1, node_rank=rank, node_count=size)
