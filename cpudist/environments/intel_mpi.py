"""Intel MPI's mpirun: a Hydra of its own."""

from __future__ import annotations

from collections.abc import Mapping

from cpudist.environments.mpich import Mpich


class IntelMpi(Mpich):
    """The ranks' variables are MPICH's; Intel's Hydra adds a job id."""

    name = "intel-mpi"

    @classmethod
    def detect(cls, variables: Mapping[str, str]) -> bool:
        # Not I_MPI_ROOT, which setvars.sh leaves in every shell, and not I_MPI_MPIRUN: `mpirun` is a shell script that
        # sets it and then runs the first mpiexec.hydra on PATH, which may be MPICH's.
        return "I_MPI_HYDRA_UUID" in variables and super().detect(variables)

    def _check_launcher(self) -> None:
        """Intel's script has found Intel's own mpiexec.hydra: all is well."""
