"""torchrun: PyTorch's elastic agent, one per node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpudist.environments.base import AtAddress, Placement
from cpudist.environments.variables import Variables


class Torchrun(Variables):
    """One agent per node starts the workers; one of the agents keeps the store in which they meet."""

    name = "torchrun"
    rank_variable = "LOCAL_RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # RANK and WORLD_SIZE are set by many; the run id by the agent alone.
        return "TORCHELASTIC_RUN_ID" in variables

    def placement(self) -> Placement:
        return Placement(
            rank=self.integer("RANK"),
            size=self.integer("WORLD_SIZE"),
            local_rank=self.integer("LOCAL_RANK"),
            local_size=self.integer("LOCAL_WORLD_SIZE"),
            node_rank=self.integer("GROUP_RANK"),
            node_count=self.integer("GROUP_WORLD_SIZE"),
        )

    def rendezvous(self) -> AtAddress:
        served = self._variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return replace(super().rendezvous(), served=served)

    @property
    def restarts(self) -> int:
        return super().restarts + (self.optional_integer("TORCHELASTIC_RESTART_COUNT") or 0)
