"""A process that no launcher has started."""

from collections.abc import Mapping

from cpudist.launchers.launcher import Alone, Launcher, Placement
from cpudist.launchers.slurm import tasks_without_step


class Single(Launcher):
    """A job of one rank."""

    name = "single"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return True

    def placement(self) -> Placement:
        return Placement(rank=0, size=1, local_rank=0, local_size=1, node_rank=0, node_count=1)

    def rendezvous(self) -> Alone:
        return Alone()

    @property
    def warning(self) -> str:
        tasks = tasks_without_step(self._variables)
        if tasks <= 1:
            return ""
        return f"Slurm was asked for {tasks} tasks, and this process runs alone; start all of them with srun"
