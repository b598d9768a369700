"""torchrun: PyTorch's elastic agent, one per node."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.launchers.base import Launcher, Placement, Rendezvous


class Torchrun(Launcher):
    """One agent per node starts the workers and keeps the store in which they meet."""

    name = "torchrun"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        # RANK and WORLD_SIZE are set by many; the run id by the agent alone.
        return "TORCHELASTIC_RUN_ID" in env

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        return Placement(
            rank=cls.integer(env, "RANK"),
            size=cls.integer(env, "WORLD_SIZE"),
            local_rank=cls.integer(env, "LOCAL_RANK"),
            local_size=cls.integer(env, "LOCAL_WORLD_SIZE"),
            node_rank=cls.integer(env, "GROUP_RANK"),
            node_count=cls.integer(env, "GROUP_WORLD_SIZE"),
        )

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        return "env"
