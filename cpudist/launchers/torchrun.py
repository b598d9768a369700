"""torchrun: PyTorch's elastic agent, one per node."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import ClassVar

from cpudist.launchers.env import Env
from cpudist.launchers.launcher import AtAddress, Launcher
from cpudist.topology.identity import resolved


class Torchrun(Env):
    """An agent on each node starts that node's ranks; one of the agents serves the store."""

    name = "torchrun"
    placement_variables: ClassVar = {
        **Env.placement_variables,
        "node_rank": "GROUP_RANK",
        "node_count": "GROUP_WORLD_SIZE",
    }
    rank_variable = "LOCAL_RANK"
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
        # The agent waits for its keep-alive, and compare_set in it has no timeout (torch 2.13).
        endpoint = self._variables.get("PET_RDZV_ENDPOINT") or self._variables.get("PET_MASTER_ADDR", "")
        shared = resolved(endpoint.partition(":")[0]) & resolved(self._variables.get("MASTER_ADDR", ""))
        return os.getppid() if shared else None

    @property
    def restarts(self) -> int:
        return super().restarts + (self.optional_integer("TORCHELASTIC_RESTART_COUNT") or 0)

    @property
    def run_ids(self) -> dict[str, bool]:
        return super().run_ids | self._agent_id()

    def _agent_id(self) -> dict[str, bool]:
        # Users reuse an --rdzv-id (default "none"), but the name of the agent's log folder is unique. When a node
        # joins, torchrun starts the ranks again without raising their restart number.
        folder = self._variables.get("TORCHELASTIC_ERROR_FILE", "").rpartition("/attempt_")[0]
        if folder:
            return {f"torchrun-{PurePath(folder).name}": True}
        name = self._variables["TORCHELASTIC_RUN_ID"]
        counted = bool(self.optional_integer("TORCHELASTIC_RESTART_COUNT"))
        return {} if name == "none" else {f"torchrun-{name}": counted}
