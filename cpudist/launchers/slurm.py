"""Slurm's srun."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.base import Launcher, Placement, Rendezvous
from cpudist.launchers.slurm_hostlist import expand_counts, expand_hosts

# Ids from here on are no steps that srun started: the batch script, an interactive shell, …
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class Slurm(Launcher):
    """One task of a job step.

    The batch script and a shell of salloc carry SLURM_PROCID and SLURM_NTASKS as well, but they are one process that no
    step started; only the variables of the step say how many there are.
    """

    name = "slurm"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        step = env.get("SLURM_STEP_ID", "")
        return "SLURM_PROCID" in env and step.isdigit() and int(step) < _FIRST_SPECIAL_STEP

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        node_rank = cls.integer(env, "SLURM_NODEID")
        tasks = cls._tasks_per_node(env)
        if node_rank >= len(tasks):
            raise UserError(
                f"SLURM_NODEID={node_rank} is not one of the {len(tasks)} nodes of"
                f" SLURM_STEP_TASKS_PER_NODE={env['SLURM_STEP_TASKS_PER_NODE']!r}: start the ranks with srun"
            )
        return Placement(
            rank=cls.integer(env, "SLURM_PROCID"),
            # SLURM_NTASKS is what the job asked for; --preserve-env and nested steps leave it at that.
            size=cls.integer(env, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"),
            local_rank=cls.integer(env, "SLURM_LOCALID"),
            local_size=tasks[node_rank],
            node_rank=node_rank,
            node_count=len(tasks),
        )

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        # srun --mpi=pmi2 and --mpi=pmix make an MPI world and say so to each task; --mpi=none does not.
        return "mpi" if "PMI_RANK" in env or "PMIX_RANK" in env else "slurm"

    @classmethod
    def master(cls, env: Mapping[str, str]) -> tuple[str, int]:
        """Where the ranks meet without MPI: on the step's first node, at a port of its own."""
        hosts = expand_hosts(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", ""))
        # One node reaches itself, whether or not its Slurm name can be resolved.
        address = "127.0.0.1" if len(hosts) == 1 else hosts[0]
        # Steps that share a node must differ; the ports stay below those that the system hands out (32768 and up).
        port = 15000 + (cls.integer(env, "SLURM_JOB_ID") * 31 + cls.integer(env, "SLURM_STEP_ID")) % 15000
        return env.get("MASTER_ADDR") or address, cls.optional_integer(env, "MASTER_PORT") or port

    @classmethod
    def _tasks_per_node(cls, env: Mapping[str, str]) -> list[int]:
        # Not SLURM_NTASKS_PER_NODE, which exists only when the user asked for it.
        text = env.get("SLURM_STEP_TASKS_PER_NODE")
        if text is None:
            raise UserError("slurm started this process, but SLURM_STEP_TASKS_PER_NODE is not set: start it with srun")
        return expand_counts(text)
