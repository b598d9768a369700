"""PyTorch's own variables: `env://`, torchrun, and Kubeflow's PyTorchJob, whose RANK may be the number of a pod."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from cpudist.errors import UserError
from cpudist.launchers.launcher import AtAddress, Launcher, Placement
from cpudist.launchers.mpis import MPIS
from cpudist.topology.identity import resolved

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Env(Launcher):
    """PyTorch's own variables, set by the user or by a script."""

    name = "env"
    placement_variables: ClassVar[tuple[str, ...]] = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank_variable = "RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "RANK" in variables or "WORLD_SIZE" in variables

    def placement(self) -> Placement:
        self._require_all()
        return super().placement()

    def rendezvous(self) -> AtAddress:
        self._require_all()
        return AtAddress(self._variables["MASTER_ADDR"], self.master_port or 0, token=self.token)

    def _require_all(self) -> None:
        missing = [name for name in _REQUIRED if not self._variables.get(name)]
        if missing:
            given = "RANK" if self._variables.get("RANK") else "WORLD_SIZE"
            remedy = f"set {', '.join(_REQUIRED[:-1])} and {_REQUIRED[-1]}, or unset {given} to run alone"
            raise UserError(f"{given} is set but {' and '.join(missing)} is not; {remedy}")


class Torchrun(Env):
    """An agent on each node starts that node's ranks; one of the agents serves the store."""

    name = "torchrun"
    placement_variables = (*Env.placement_variables, "GROUP_RANK", "GROUP_WORLD_SIZE")
    rank_variable = "LOCAL_RANK"
    restart_variable = "TORCHELASTIC_RESTART_COUNT"
    placement = Launcher.placement  # torchrun sets all variables, so `Env`'s advice to set them does not apply

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # Other launchers set RANK and WORLD_SIZE as well; only torchrun's agent sets the run id.
        return "TORCHELASTIC_RUN_ID" in variables

    def rendezvous(self) -> AtAddress:
        served = self._variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return replace(super().rendezvous(), served=served)

    @property
    def waiting_agent(self) -> int | None:
        # At its end the agent joins its keep-alive thread, whose compare_set has no timeout (torch 2.13).
        endpoint = self._variables.get("PET_RDZV_ENDPOINT") or self._variables.get("PET_MASTER_ADDR", "")
        shared = resolved(endpoint.partition(":")[0]) & resolved(self._variables.get("MASTER_ADDR", ""))
        return os.getppid() if shared else None

    @property
    def run_ids(self) -> dict[str, bool]:
        return super().run_ids | self._agent_id()

    def _agent_id(self) -> dict[str, bool]:
        # Users reuse an --rdzv-id (default "none"), but the agent's log folder has a unique name. All attempts share
        # it, even those with one restart number: torchrun does not raise that number when a node joins.
        folder = self._variables.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")[0]
        if folder:
            return {f"torchrun-{PurePath(folder).name}": True}
        name = self._variables["TORCHELASTIC_RUN_ID"]
        counted = bool(self.optional_integer("TORCHELASTIC_RESTART_COUNT"))
        return {} if name == "none" else {f"torchrun-{name}": counted}


class PyTorchJobPod(Env):
    """The operator sets RANK to the pod's index, but WORLD_SIZE to the number of pods times nprocPerNode.

    torchrun in a pod sets RANK anew; `detect` recognises its ranks as torchrun's.
    """

    name = "pytorchjob"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "PET_NNODES" in variables or "PET_NODE_RANK" in variables  # the operator sets them for torchrun

    def placement(self) -> Placement:
        if "PET_NNODES" in self._variables and not self._variables.get("RANK"):  # a TrainJob, or an elastic PyTorchJob
            why = "this pod sets PET_NNODES and other variables for torchrun, but no RANK"
            raise UserError(f"{why}; start it with torchrun")
        if "LOCAL_RANK" in self._variables:  # a script has set RANK to the number of a process
            return super().placement()
        self._require_all()
        if any(mpi.detect(self._variables) for mpi in MPIS):
            why = "mpirun runs in a pod of this PyTorchJob, whose RANK is the pod's number"
            raise UserError(f"{why}; start the processes in the pod with torchrun, or make the job an MPIJob")
        # With nprocPerNode "auto", "cpu" and the like, WORLD_SIZE is the number of pods.
        processes = self._variables.get("PET_NPROC_PER_NODE", "")
        if processes.isdigit() and int(processes) > 1:
            why = f"this PyTorchJob has nprocPerNode {processes}, and its RANK is the pod's number"
            raise UserError(f"{why}; start the processes in the pod with torchrun, or set nprocPerNode to 1")
        rank, size = self.integer("RANK"), self.integer("WORLD_SIZE")
        return Placement(rank, size, local_rank=0, local_size=1, node_rank=rank, node_count=size)
