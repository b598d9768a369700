"""MPIJob (kubeflow.org/v2beta1): `cpudist launch` in the launcher's pod, sshd in the workers'.

The operator writes the hostfile, and the keys with which pods let each other in. It starts the launcher together with
the workers, whose names DNS may not know yet, and sshd hands no variables on. `cpudist launch` waits for the workers,
and gives the ranks the launcher's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.render import document, pods, values
from cpudist.render import wishes as common
from cpudist.render.document import Noted, Script
from cpudist.render.option import Kind, Option
from cpudist.render.ranks import train
from cpudist.render.wishes import Wishes

_IMPLEMENTATIONS = {"intel": "Intel", "mpich": "MPICH", "openmpi": "OpenMPI"}
_HOSTFILE = "/etc/mpi/hostfile"
_HOME = "/home/cpudist"  # of the Dockerfile's user

# Were sshd to get the signal, it would end at once, and the ranks with it.
_WORKER = f"""\
# When the pod is to end, its ranks get the signal and save a checkpoint; sshd, through which they run, ends after them.
ranks() {{ grep -lszE '^(PMI_RANK|OMPI_COMM_WORLD_RANK)=' /proc/[0-9]*/environ | cut -d / -f 3; }}
trap 'kill -TERM $(ranks) 2> /dev/null; while [ "$(ranks)" ]; do sleep 1; done; kill $!' TERM
/usr/sbin/sshd -D -e -f {_HOME}/sshd_config &
wait
"""


@dataclass(frozen=True)
class MpiJobWishes(Wishes):
    """Those of an MPIJob; `wait` in seconds."""

    mpi: str
    wait: int


def render(arguments: list[str], given: Mapping[str, Any]) -> str:
    """The manifest as text."""
    wishes = MpiJobWishes(arguments=arguments, **given)
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": wishes.name, "namespace": wishes.namespace},
        "spec": {
            "mpiImplementation": _IMPLEMENTATIONS[wishes.mpi],
            "slotsPerWorker": Noted(wishes.ranks_per_pod, "ranks in each worker, for the hostfile"),
            "sshAuthMountPath": Noted(f"{_HOME}/.ssh", "of the image's user, who is not root"),
            "runPolicy": {
                "cleanPodPolicy": Noted("Running", "workers go with the job; the launcher stays, with its log"),
                "backoffLimit": Noted(0, "a rank that fails fails the job"),
            },
            "mpiReplicaSpecs": {
                "Launcher": _replica(1, _launcher(wishes)),
                "Worker": _replica(wishes.replicas, _worker(wishes)),
            },
        },
    }
    ranks = wishes.replicas * wishes.ranks_per_pod
    heading = f"{ranks} ranks: {wishes.replicas} workers of {wishes.ranks_per_pod}\nkubectl apply -f THIS_FILE"
    return document.write([job], heading)


def _replica(replicas: int, spec: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": spec}}


def _launcher(wishes: MpiJobWishes) -> dict[str, Any]:
    command = ["cpudist", "launch", "--hostfile", _HOSTFILE, "--mpi", wishes.mpi, "--wait", str(wishes.wait)]
    command += ["--grace", str(wishes.saving)]
    return pods.launcher(wishes, "launcher", command, ["--", *train(wishes.arguments)])


def _worker(wishes: MpiJobWishes) -> dict[str, Any]:
    spec = pods.pod(wishes, "worker", ["sh", "-c"], [Script(_WORKER)])
    del spec["containers"][0]["env"]  # what ranks get comes from the launcher
    return spec


def _mpi(text: str) -> str:
    if text not in _IMPLEMENTATIONS:
        raise ValueError(f"not one of {', '.join(_IMPLEMENTATIONS)}")
    return text


KIND = Kind(
    "mpijob",
    "an MPIJob: cpudist launch in the launcher, sshd in the workers",
    (
        *common.OPTIONS,
        Option("--mpi", "{intel,mpich,openmpi}", _mpi, "whose mpirun (default intel)", "intel"),
        Option("--wait", "SECONDS", values.count, "how long the launcher waits for its workers (default 300)", "300"),
    ),
    common.contradictions,
    render,
)
