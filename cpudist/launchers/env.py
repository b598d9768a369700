"""PyTorch's `env://`: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by the user or by a script."""

from collections.abc import Mapping
from typing import ClassVar

from cpudist.errors import UserError
from cpudist.launchers.launcher import AtAddress, Launcher, Placement

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Env(Launcher):
    """PyTorch's own variables, set by the user or by a script."""

    name = "env"
    placement_variables: ClassVar = {
        "rank": "RANK",
        "size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "local_size": "LOCAL_WORLD_SIZE",
    }
    rank_variable = "RANK"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        return "RANK" in variables or "WORLD_SIZE" in variables

    def placement(self) -> Placement:
        self._require_all()
        return super().placement()

    def rendezvous(self) -> AtAddress:
        self._require_all()
        return AtAddress(self._variables["MASTER_ADDR"], self.master_port or 0, token=self.token)

    def _require_all(self) -> None:
        missing = [name for name in _REQUIRED if not self._variables.get(name)]
        if missing:
            given = "RANK" if self._variables.get("RANK") else "WORLD_SIZE"
            raise UserError(
                f"{given} is set but {' and '.join(missing)} is not: set {', '.join(_REQUIRED[:-1])} and"
                f" {_REQUIRED[-1]}, or unset {given} to run alone"
            )
