"""Hydra: the launcher of MPICH and, with changes, of Intel MPI. It hands its whole environment to all ranks."""

from __future__ import annotations

from cpudist.launch.hostfile import OPTION
from cpudist.launch.launchers.base import Launcher, Start


class Hydra(Launcher):
    """What MPICH's and Intel MPI's have in common."""

    rank_variable = "PMI_RANK"

    def pinning(self, start: Start) -> list[str]:
        """The options that switch the launcher's own pinning off."""
        raise NotImplementedError

    def command(self, start: Start) -> list[str]:
        # Inside an allocation of Slurm's, Hydra would start its helpers with srun, on the hosts of that.
        words = [str(self.program), "-launcher", "ssh" if start.hostfile else "fork", *self.pinning(start)]
        if start.hostfile:
            words += [OPTION[self.mpi], start.hostfile]
        if start.interface:
            words += ["-iface", start.interface]
        if start.all_output:
            words += ["-prepend-rank"]
        return [*words, "-n", str(start.ranks), *start.program]
