"""Flux's `flux run` and `flux submit`."""

from cpudist.launchers.launcher import Launcher, OverMpi, Placement


class Flux(Launcher):
    """A rank is one task of a job, with PMI-1 for its MPI. Flux does not give the number of tasks on a node."""

    name = "flux"
    placement_variables = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE")
    rank_variable = "FLUX_TASK_RANK"

    def placement(self) -> Placement:
        found = super().placement()
        if self.integer("FLUX_JOB_NNODES") > 1:
            return found
        return Placement(found.rank, found.size, self.integer("FLUX_TASK_LOCAL_ID"), found.size, 0, 1)

    def rendezvous(self) -> OverMpi:
        return OverMpi()
