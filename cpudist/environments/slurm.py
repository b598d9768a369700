"""Slurm's srun."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.environments.base import AtAddress, Environment, OverMpi, Placement
from cpudist.environments.slurm_hostlist import expand_counts, expand_hosts
from cpudist.errors import UserError

# Ids from here on are no steps that srun started: the batch script, an interactive shell, …
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Slurm(Environment):
    """One task of a job step.

    The batch script and a shell of salloc carry SLURM_PROCID and SLURM_NTASKS as well, but they are one process that no
    step started; only the variables of the step say how many there are.
    """

    name = "slurm"
    rank_variable = "SLURM_PROCID"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        step = variables.get("SLURM_STEP_ID", "")
        return "SLURM_PROCID" in variables and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP

    def placement(self) -> Placement:
        node_rank = self.integer("SLURM_NODEID")
        tasks = self._tasks_per_node()
        if node_rank >= len(tasks):
            raise UserError(
                f"SLURM_NODEID={node_rank} is not one of the {len(tasks)} nodes of"
                f" SLURM_STEP_TASKS_PER_NODE={self._variables['SLURM_STEP_TASKS_PER_NODE']!r}: start them with srun"
            )
        # SLURM_NTASKS is what the job asked for; --preserve-env and nested steps leave it at that.
        size = self.optional_integer("SLURM_STEP_NUM_TASKS")
        return Placement(
            rank=self.integer("SLURM_PROCID"),
            size=self.integer("SLURM_NTASKS") if size is None else size,
            local_rank=self.integer("SLURM_LOCALID"),
            local_size=tasks[node_rank],
            node_rank=node_rank,
            node_count=len(tasks),
        )

    def rendezvous(self) -> OverMpi | AtAddress:
        # srun --mpi=pmi2 and --mpi=pmix make an MPI world and say so to each task; --mpi=none does not.
        if "PMI_RANK" in self._variables or "PMIX_RANK" in self._variables:
            return OverMpi()
        hosts = expand_hosts(
            self._variables.get("SLURM_STEP_NODELIST") or self._variables.get("SLURM_JOB_NODELIST", "")
        )
        # One node reaches itself, whether or not its Slurm name can be resolved.
        host = "127.0.0.1" if len(hosts) == 1 else hosts[0]
        # Steps that share a node must differ; the ports stay below those that the system hands out (32768 and up).
        port = 15000 + (self.integer("SLURM_JOB_ID") * 31 + self.integer("SLURM_STEP_ID")) % 15000
        return AtAddress(
            self._variables.get("MASTER_ADDR") or host,
            self.optional_integer("MASTER_PORT") or port,
            # No secret, but no other step that happens to have this port takes a rank of this one for its own.
            token=self.token or f"{self.integer('SLURM_JOB_ID')}.{self.integer('SLURM_STEP_ID')}",
        )

    @property
    def restarts(self) -> int:
        return super().restarts + (self.optional_integer("SLURM_RESTART_COUNT") or 0)

    def _tasks_per_node(self) -> list[int]:
        # Not SLURM_NTASKS_PER_NODE, which exists only when the user asked for it.
        text = self._variables.get("SLURM_STEP_TASKS_PER_NODE")
        if text is None:
            raise UserError("slurm started this process, but SLURM_STEP_TASKS_PER_NODE is not set: start it with srun")
        return expand_counts(text)
