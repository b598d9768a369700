"""MPICH's mpirun (Hydra)."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.launchers.base import Launcher, Placement, Rendezvous


class Mpich(Launcher):
    """Hydra, and whatever else speaks PMI-1 and sets PMI_RANK.

    Started as `mpirun -n N` without `-ppn` or slots in a hostfile, MPICH 4.0's Hydra counts one slot per host, and
    Intel MPI's library aborts on that in MPI_Init ("MPIDU_bc_table_create"). Nothing in a rank's environment shows it.
    """

    name = "mpich"

    @classmethod
    def detect(cls, env: Mapping[str, str]) -> bool:
        # `srun --mpi=pmi2` sets PMI_RANK too, but no local rank. The other way round Hydra inside a Slurm allocation
        # starts its proxies with srun, so its ranks carry a Slurm step's variables: only MPI_LOCALRANKID tells.
        return "PMI_RANK" in env and ("MPI_LOCALRANKID" in env or "SLURM_STEP_ID" not in env)

    @classmethod
    def placement(cls, env: Mapping[str, str]) -> Placement:
        return Placement(
            rank=cls.integer(env, "PMI_RANK"),
            size=cls.integer(env, "PMI_SIZE"),
            local_rank=cls.optional_integer(env, "MPI_LOCALRANKID"),
            local_size=cls.optional_integer(env, "MPI_LOCALNRANKS"),
        )

    @classmethod
    def rendezvous(cls, env: Mapping[str, str]) -> Rendezvous:
        return "mpi"
