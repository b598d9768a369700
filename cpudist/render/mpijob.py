"""MPIJob (kubeflow.org/v2beta1): `cpudist launch` in the launcher's pod, sshd in the workers' pods.

The operator writes the hostfile, and the keys with which the pods log in to each other. It starts the launcher together
with the workers, when DNS may not know their names yet, and sshd passes no variables on. `cpudist launch` waits for the
workers and passes the launcher's variables to the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpudist.launchers.mpis import MPI_BY_OPTION, MPIS
from cpudist.render import document, values
from cpudist.render.document import LiteralBlock, Noted
from cpudist.render.job import option
from cpudist.render.pods import PodJob

_RANK_VARIABLES = "|".join(dict.fromkeys(mpi.rank_variable for mpi in MPIS))
_JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"  # a new launcher's pod has it too
_HOSTFILE = "/etc/mpi/hostfile"
_HOME = "/home/cpudist"  # of the Dockerfile's user

# sshd ends at once on SIGTERM, and the ranks with it, so it does not get the pod's signal.
_WORKER = f"""\
# At the end of the pod its ranks get SIGTERM and save a checkpoint. sshd, through which they run, ends after them.
ranks() {{ grep -lszE '^({_RANK_VARIABLES})=' /proc/[0-9]*/environ | cut -d / -f 3; }}
trap 'kill -TERM $(ranks) 2> /dev/null; while [ "$(ranks)" ]; do sleep 1; done; kill $!' TERM
/usr/sbin/sshd -D -e -f {_HOME}/sshd_config &
wait
"""


@dataclass(frozen=True, kw_only=True)
class MpiJob(PodJob):
    """An MPIJob; the launcher waits `wait` seconds for its workers."""

    SUMMARY = "an MPIJob: cpudist launch in the launcher, sshd in the workers"
    mpi: str = option(f"{{{','.join(MPI_BY_OPTION)}}}", values.one_of(tuple(MPI_BY_OPTION)), "MPI", "intel")
    wait: int = option("SECONDS", values.count, "how long the launcher waits for its workers", "300")

    def render(self) -> str:
        """Return the manifest."""
        job = {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": self.metadata,
            "spec": {
                "mpiImplementation": MPI_BY_OPTION[self.mpi].mpi_job,
                "slotsPerWorker": Noted(self.ranks_per_pod, "ranks in each worker, for the hostfile"),
                "sshAuthMountPath": Noted(f"{_HOME}/.ssh", "of the image's user, who is not root"),
                "runPolicy": {
                    "cleanPodPolicy": Noted("Running", "workers end with the job; the launcher stays, with its log"),
                    "backoffLimit": Noted(0, "a rank that fails fails the job"),
                },
                "mpiReplicaSpecs": {
                    "Launcher": _replica(1, self._launcher()),
                    "Worker": _replica(self.replicas, self._worker()),
                },
            },
        }
        return document.write([job], self.heading("workers"))

    def _launcher(self) -> dict[str, Any]:
        command = ["cpudist", "launch", "--hostfile", _HOSTFILE, "--mpi", self.mpi, "--wait", str(self.wait)]
        command += ["--grace", str(self.saving)]
        container = {"name": "launcher", "command": command, "args": ["--", *self.train]}
        return self.template({**container, "env": self.variables(_JOB_UID)}, trains=False)

    def _worker(self) -> dict[str, Any]:
        # Without variables: ranks get the launcher's.
        return self.template({"name": "worker", "command": ["sh", "-c"], "args": [LiteralBlock(_WORKER)]})


def _replica(replicas: int, template: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": replicas, "restartPolicy": "Never", "template": template}
