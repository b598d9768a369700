"""No launcher: one process, alone."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.launchers.base import Launcher, Placement, Rendezvous


class Single(Launcher):
    """A job of one rank."""

    name = "single"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        return True

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        return Placement(rank=0, size=1, local_rank=0, local_size=1, node_rank=0, node_count=1)

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        return "single"
