"""Slurm's srun."""

import hmac
import re
from collections.abc import Mapping

from cpudist.errors import UserError
from cpudist.launchers.launcher import FIRST_SPECIAL_STEP, AtAddress, Launcher, OverMpi, Placement
from cpudist.trust import secret

# Slurm's compressed notations: host lists (`n[01-03,7],gpu-a`) and counts per node (`2(x3),1`).
_FIRST_HOST = re.compile(r"(?:[^,\[\]]|\[\d[\d,-]*\])+")
_BRACKET = re.compile(r"\[(\d+)[^\]]*\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class Slurm(Launcher):
    """A rank is one task of a job step.

    The batch script and a shell of salloc have SLURM_PROCID and SLURM_NTASKS too, but they are not tasks of a step.
    Only the variables of a step give the number of tasks.
    """

    name = "slurm"
    rank_variable = "SLURM_PROCID"
    restart_variable = "SLURM_RESTART_COUNT"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        step = variables.get("SLURM_STEP_ID", "")
        return "SLURM_PROCID" in variables and step.isdigit() and int(step) < FIRST_SPECIAL_STEP

    def placement(self) -> Placement:
        node_rank = self.integer("SLURM_NODEID")
        tasks = self._tasks_per_node()
        if node_rank >= len(tasks):
            given = f"SLURM_STEP_TASKS_PER_NODE={self._variables['SLURM_STEP_TASKS_PER_NODE']!r}"
            why = f"SLURM_NODEID={node_rank} is not one of the {len(tasks)} nodes of {given}"
            raise UserError(f"{why}; start the ranks with srun")
        # Prefer the step's variable: in nested steps and with --preserve-env, SLURM_NTASKS is the job's number.
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
        # srun --mpi=pmi2 makes an MPI world and sets this variable. PyPI's MPICH cannot join a world of --mpi=pmix.
        if "PMI_RANK" in self._variables:
            return OverMpi()
        job, step = self.integer("SLURM_JOB_ID"), self.integer("SLURM_STEP_ID")
        # Steps that share a node need different ports, below those that the system assigns (32768 and up).
        port = self.master_port or 15000 + (job * 31 + step) % 15000
        # The step's id is public, so the token is derived from the user's secret as well.
        token = self.token or hmac.digest(secret().encode(), f"{job}.{step}".encode(), "sha256").hex()
        host = self._variables.get("MASTER_ADDR") or self._first_host()
        return AtAddress(host, port, token=token, name_known=True)

    def _first_host(self) -> str:
        if len(self._tasks_per_node()) == 1:
            return "127.0.0.1"  # this works even if this node's Slurm name cannot be resolved
        arbitrary = self._variables.get("SLURM_DISTRIBUTION", "").startswith("arbitrary")
        if arbitrary or "SLURM_HOSTFILE" in self._variables:  # node lists have the allocation's order, not the ranks'
            raise UserError("srun -m arbitrary does not tell the ranks where rank 0 is: set MASTER_ADDR to its node")
        return _first_of(self._variables.get("SLURM_STEP_NODELIST") or self._variables.get("SLURM_JOB_NODELIST", ""))

    def _tasks_per_node(self) -> list[int]:
        # SLURM_NTASKS_PER_NODE cannot be used: it is set only if the user has given that option.
        text = self._variables.get("SLURM_STEP_TASKS_PER_NODE")
        if text is None:
            raise UserError("slurm started this process, but SLURM_STEP_TASKS_PER_NODE is not set: start it with srun")
        return _expand_counts(text)


def tasks_without_step(variables: Mapping[str, str]) -> int:
    """Return the number of tasks that a batch script or a shell of salloc has requested; 0 elsewhere or if unknown."""
    tasks = variables.get("SLURM_NTASKS", "")
    return int(tasks) if "SLURM_JOB_ID" in variables and tasks.isdigit() and not Slurm.detect(variables) else 0


def _first_of(hosts: str) -> str:
    """Return the first name of a host list, such as ``n01`` of ``n[01-03,7],gpu-a``."""
    first = _FIRST_HOST.match(hosts)
    if first is None or hosts[first.end() : first.end() + 1] not in ("", ","):
        raise _not_understood(hosts)
    return _BRACKET.sub(r"\1", first[0])


def _expand_counts(text: str) -> list[int]:
    """Return the number of tasks of each node."""
    counts: list[int] = []
    for piece in text.split(","):
        match = _COUNT.fullmatch(piece)
        if match is None:
            raise _not_understood(text)
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _not_understood(text: str) -> UserError:
    return UserError(f"Slurm's list {text!r} is not understood: set MASTER_ADDR and start the step with srun itself")
