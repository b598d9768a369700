"""RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand or by a script: PyTorch's `env://`."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.environments.base import AtAddress, Environment, Placement
from cpudist.errors import UserError


class Variables(Environment):
    """PyTorch's own variables, whoever has set them."""

    name = "env"
    rank_variable = "RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "RANK" in variables or "WORLD_SIZE" in variables

    def placement(self) -> Placement:
        self._require_all()
        return Placement(
            rank=self.integer("RANK"),
            size=self.integer("WORLD_SIZE"),
            local_rank=self.optional_integer("LOCAL_RANK"),
            local_size=self.optional_integer("LOCAL_WORLD_SIZE"),
        )

    def rendezvous(self) -> AtAddress:
        host, port = self._variables.get("MASTER_ADDR", ""), self._variables.get("MASTER_PORT", "")
        if not host:
            raise UserError("MASTER_ADDR is not set; start the job with torchrun, or set it to rank 0's host")
        if not port.isdigit():
            raise UserError(f"MASTER_PORT={port!r} is not a port number; set it to a free port of rank 0's host")
        return AtAddress(host, int(port), token=self.token)

    def _require_all(self) -> None:
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if not self._variables.get(name)]
        if missing:
            given = "RANK" if self._variables.get("RANK") else "WORLD_SIZE"
            raise UserError(
                f"{given} is set but {' and '.join(missing)} is not: set {', '.join(names[:-1])} and {names[-1]},"
                f" or unset {given} to run alone"
            )
