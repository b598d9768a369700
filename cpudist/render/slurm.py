"""A batch script for Slurm: srun starts the ranks, and the script has Slurm queue the job again when it is interrupted.

Before the time is over Slurm sends SIGUSR1 to the ranks, and before it gives their nodes to a job of a higher tier,
SIGTERM. Ranks then save a checkpoint and end with 138 or 143. A job that ends by itself Slurm does not queue again, so
the script asks for that; recipes go on from the checkpoint. `scancel` looks alike to the ranks, but not to `squeue`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.render import values
from cpudist.render.option import Kind, Option
from cpudist.render.ranks import planned, reasons, train

_MPIS = ("none", "pmi2", "pmix")
_SOCKETS = 2

_SCRIPT = """\
#!/bin/bash
# {heading}
# sbatch THIS_FILE
{directives}

{exports}
{srun}
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


@dataclass(frozen=True)
class SlurmWishes:
    """A batch job; memory in bytes, `time` and `signal_before` in seconds.

    Attributes:
        arguments: of cpudist-train.
        ranks_per_node, ranks_per_socket: one of them is set, or none: one rank on each node.
        memory: of each node; None: what the partition gives.
        container: an Apptainer image; None: the nodes' own environment.
        max_restarts: how often it is queued again.
    """

    arguments: list[str]
    name: str
    nodes: int
    ranks_per_node: int | None
    ranks_per_socket: int | None
    sockets_per_node: int | None
    cpus_per_rank: int
    memory: int | None
    time: int
    signal_before: int
    partition: str | None
    account: str | None
    mpi: str
    container: str | None
    env: list[tuple[str, str]]
    max_restarts: int

    @property
    def sockets(self) -> int:
        """Of each node, as far as ranks are counted by them."""
        return self.sockets_per_node or _SOCKETS

    @property
    def ranks_on_a_node(self) -> int:
        """The number of ranks on each node."""
        return self.ranks_per_socket * self.sockets if self.ranks_per_socket else self.ranks_per_node or 1


def check(given: Mapping[str, Any]) -> list[str]:
    """What does not fit together, one line each."""
    problems = []
    if given.get("ranks_per_node") and given.get("ranks_per_socket"):
        problems.append("--ranks-per-node and --ranks-per-socket: both say how many ranks there are; give one of them")
    if given.get("sockets_per_node") and "ranks_per_socket" in given and not given["ranks_per_socket"]:
        problems.append("--sockets-per-node: only --ranks-per-socket counts by sockets; give that too")
    time, before = given.get("time"), given.get("signal_before")
    if time and before and before >= time:
        problems.append(f"--signal-before {before}: not less than --time, which is {time} seconds")
    return problems


def render(arguments: list[str], given: Mapping[str, Any]) -> str:
    """The script."""
    wishes = SlurmWishes(arguments=arguments, **given)
    ranks = wishes.nodes * wishes.ranks_on_a_node
    return _SCRIPT.format(
        heading=f"{ranks} ranks: {wishes.nodes} nodes of {wishes.ranks_on_a_node}",
        directives="\n".join(_directives(wishes)),
        exports="".join(_exports(wishes)),
        srun=_srun(wishes),
        max_restarts=wishes.max_restarts,
    )


def _directives(wishes: SlurmWishes) -> list[str]:
    asked = {"job-name": wishes.name, "partition": wishes.partition, "account": wishes.account, "nodes": wishes.nodes}
    if wishes.ranks_per_socket:
        asked["ntasks"] = wishes.nodes * wishes.ranks_on_a_node
        asked |= {"sockets-per-node": wishes.sockets, "ntasks-per-socket": wishes.ranks_per_socket}
    else:
        asked["ntasks-per-node"] = wishes.ranks_on_a_node
    asked["cpus-per-task"] = wishes.cpus_per_rank
    asked["mem"] = f"{wishes.memory // values.MEBIBYTE}M" if wishes.memory else None
    lines = [f"#SBATCH --{name}={value}" for name, value in asked.items() if value is not None]
    return [
        *lines,
        f"#SBATCH --time={_written(wishes.time)}",
        "# To the ranks, so many seconds before the time is over, to save a checkpoint; Slurm may be a minute early.",
        f"#SBATCH --signal=USR1@{wishes.signal_before}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --output=%x-%j.out",
    ]


def _exports(wishes: SlurmWishes) -> list[str]:
    own, ranks = dict(wishes.env), wishes.ranks_on_a_node
    cpus = ranks * wishes.cpus_per_rank
    plan, found = planned(cpus, ranks, own, wishes.arguments, wishes.nodes * ranks > 1)
    why = reasons(plan, cpus)
    lines = [f"# {why[name]}\nexport {name}={shlex.quote(value)}\n" for name, value in found.items()]
    return lines + [f"export {name}={shlex.quote(value)}\n" for name, value in own.items()]


def _srun(wishes: SlurmWishes) -> str:
    # srun does not take this from sbatch's options since Slurm 22.05.
    words = ["srun", f"--mpi={wishes.mpi}", f"--cpus-per-task={wishes.cpus_per_rank}"]
    inside = f'apptainer exec --bind "$PWD" {shlex.quote(wishes.container)} ' if wishes.container else ""
    return f"{shlex.join(words)} {inside}{shlex.join(['cpudist-train', *train(wishes.arguments)])}"


def _written(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"


def _mpi(text: str) -> str:
    if text not in _MPIS:
        raise ValueError(f"not one of {', '.join(_MPIS)}; `srun --mpi=list` says which of them this Slurm has")
    return text


KIND = Kind(
    "slurm",
    "a batch script for sbatch: srun, with a checkpoint before the time is over",
    (
        Option("--name", "NAME", values.job_name, "the job's name (default cpudist)", "cpudist"),
        Option("--nodes", "N", values.count, "nodes (default 1)", "1"),
        Option("--ranks-per-node", "N", values.count, "ranks on each node (default 1)"),
        Option("--ranks-per-socket", "N", values.count, "or on each socket of a node"),
        Option("--sockets-per-node", "N", values.count, "sockets of a node, for --ranks-per-socket (default 2)"),
        Option("--cpus-per-rank", "N", values.cpus, "CPUs of each rank (default 4)", "4"),
        Option("--memory", "AMOUNT", values.memory, "of each node (default: what the partition gives)"),
        Option("--time", "[D-]HH:MM:SS", values.time_limit, "the time limit (default 01:00:00)", "01:00:00"),
        Option("--signal-before", "SECONDS", values.count, "checkpoint so long before its end (default 120)", "120"),
        Option("--max-restarts", "N", values.count_or_none, "how often to queue it again (default 10)", "10"),
        Option("--partition", "NAME", values.word, "the partition"),
        Option("--account", "NAME", values.word, "the account"),
        Option("--mpi", "{none,pmi2,pmix}", _mpi, "of srun (default none: ranks meet over TCP)", "none"),
        Option("--container", "IMAGE", values.path, "run in this Apptainer image, such as cpudist.sif"),
        Option("--env", "NAME=VALUE", values.variable, "a variable for all ranks", several=True),
    ),
    check,
    render,
)
