"""Batch script for Slurm: srun starts the ranks, and the script requeues the job when it is interrupted.

Slurm sends SIGUSR1 to the ranks before the time is over, and SIGTERM before it gives their nodes to a job of a higher
tier. The ranks then save a checkpoint and end with 138 or 143. Slurm does not requeue a job that ends by itself, so the
script asks for it; the ranks then resume from the checkpoint. `scancel` sends SIGTERM too; `squeue` tells it from a
preemption.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from cpudist.render import values
from cpudist.render.job import RenderedJob, option

_MPIS = ("none", "pmi2", "pmix")
_SOCKETS = 2

_SCRIPT = """\
#!/bin/bash
# {heading}
# sbatch THIS_FILE
{directives}

# The ranks of this job, and nobody else, know it.
export CPUDIST_TOKEN="${{CPUDIST_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}}"
{exports}{srun}
status=$?

# 138 and 143: after SIGUSR1 or SIGTERM, with a checkpoint saved. A job that was cancelled is no longer running.
if [ "$status" = 138 ] || [ "$status" = 143 ]; then
    state=$(squeue --noheader --jobs "$SLURM_JOB_ID" --states all --format %T)
    if [ "$state" = RUNNING ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_restarts} ]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
fi
exit "$status"
"""


@dataclass(frozen=True, kw_only=True)
class SlurmJob(RenderedJob):
    """A batch job. `memory` is in bytes, `time` in seconds."""

    SUMMARY = "a batch script for sbatch: srun, with a checkpoint before the time is over"
    name: str = option("NAME", values.job_name, "name of the job", "cpudist")
    nodes: int = option("N", values.count, "number of nodes", "1")
    ranks_per_node: int | None = option("N", values.count, "ranks on each node (default 1)")
    ranks_per_socket: int | None = option("N", values.count, "or ranks on each socket of a node")
    sockets_per_node: int | None = option("N", values.count, "sockets of a node, for --ranks-per-socket (default 2)")
    cpus_per_rank: int = option("N", values.cpus, "cores of each rank", "4")
    memory: int | None = option("AMOUNT", values.memory, "memory of each node (default: the partition's)")
    time: int = option("[D-]HH:MM:SS", values.time_limit, "time limit", "01:00:00")
    signal_before: int = option("SECONDS", values.count, "save a checkpoint so long before the time limit", "120")
    max_restarts: int = option("N", values.count_from_zero, "how often to requeue the job", "10")
    partition: str | None = option("NAME", values.word, "partition")
    account: str | None = option("NAME", values.word, "account")
    mpi: str = option(
        f"{{{','.join(_MPIS)}}}",
        values.one_of(_MPIS, "; `srun --mpi=list` says which of them this Slurm has"),
        "srun's --mpi; none: rendezvous over TCP",
        "none",
    )
    container: str | None = option("IMAGE", values.path, "run in this Apptainer image, such as cpudist.sif")

    @property
    def sockets(self) -> int:
        """Sockets of each node, for `ranks_per_socket`."""
        return self.sockets_per_node or _SOCKETS

    @property
    def ranks_on_a_node(self) -> int:
        """Number of ranks on each node."""
        return self.ranks_per_socket * self.sockets if self.ranks_per_socket else self.ranks_per_node or 1

    def contradictions(self) -> list[str]:
        """Return one line for each contradiction between values."""
        problems = []
        if self.ranks_per_node and self.ranks_per_socket:
            problems.append(
                "--ranks-per-node and --ranks-per-socket: both say how many ranks there are; give one of them"
            )
        if self.sockets_per_node and not self.ranks_per_socket:
            problems.append("--sockets-per-node: only --ranks-per-socket counts by sockets; give that too")
        if self.signal_before >= self.time:
            problems.append(
                f"--signal-before {self.signal_before}: must be less than --time, which is {self.time} seconds"
            )
        return problems

    def render(self) -> str:
        """Return the script."""
        ranks = self.nodes * self.ranks_on_a_node
        return _SCRIPT.format(
            heading=f"{ranks} ranks: {self.nodes} nodes of {self.ranks_on_a_node}",
            directives="\n".join(self._directives()),
            exports="".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.env),
            srun=self._srun(),
            max_restarts=self.max_restarts,
        )

    def _directives(self) -> list[str]:
        asked: dict[str, Any] = {
            "job-name": self.name,
            "partition": self.partition,
            "account": self.account,
            "nodes": self.nodes,
        }
        if self.ranks_per_socket:
            asked["ntasks"] = self.nodes * self.ranks_on_a_node
            asked |= {"sockets-per-node": self.sockets, "ntasks-per-socket": self.ranks_per_socket}
        else:
            asked["ntasks-per-node"] = self.ranks_on_a_node
        asked |= {"cpus-per-task": self.cpus_per_rank, "hint": "nomultithread"}
        asked["mem"] = f"{self.memory // values.MEBIBYTE}M" if self.memory else None
        return [
            *(f"#SBATCH --{name}={value}" for name, value in asked.items() if value is not None),
            f"#SBATCH --time={_clock(self.time)}",
            "# To the ranks, so many seconds before the time limit, to save a checkpoint; Slurm may be a minute early.",
            f"#SBATCH --signal=USR1@{self.signal_before}",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            "#SBATCH --output=%x-%j.out",
        ]

    def _srun(self) -> str:
        # Since Slurm 22.05 srun does not take --cpus-per-task from sbatch.
        words = ["srun", f"--mpi={self.mpi}", f"--cpus-per-task={self.cpus_per_rank}"]
        inside = f'apptainer exec --bind "$PWD" {shlex.quote(self.container)} ' if self.container else ""
        return f"{shlex.join(words)} {inside}{shlex.join(['cpudist-train', *self.train])}"


def _clock(seconds: int) -> str:
    """Return seconds as HH:MM:SS."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"
