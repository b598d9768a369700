"""What jobs of pods share: options, resources, variables, shared memory, volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpudist.pinning.preload import allocator_decided
from cpudist.render import values
from cpudist.render.document import Noted
from cpudist.render.job import RenderedJob, option
from cpudist.render.values import MEBIBYTE, quantity
from cpudist.text import number_of
from cpudist.version import __version__

USER = 1000  # of the Dockerfile's image

# Without a path: where the library lies differs between processors, and the loader finds it by its name.
_ALLOCATOR = "libtcmalloc_minimal.so.4"
_LAUNCHER_CPUS, _LAUNCHER_MEMORY = 1, 1024 * MEBIBYTE
_RUN_ID = "CPUDIST_RUN_ID"
_SHARED_MEMORY, _DATA = "shared-memory", "data"
# In /dev/shm, for each rank: MPI and processes that load data use it. cpudist's own shared memory lies elsewhere.
_RANK_SHARED_MEMORY = 256 * MEBIBYTE
# What `cpudist launch` asks of a host: a rank that has imported torch and made its process group.
_RANK_LEAST_MEMORY = 400 * MEBIBYTE
# Seconds that the launcher in a pod (torchrun, `cpudist launch`) needs to end after its ranks.
_END_SECONDS = 10


@dataclass(frozen=True, kw_only=True)
class PodJob(RenderedJob):
    """A job of pods. Amounts of memory are in bytes."""

    name: str = option("NAME", values.name, "name of the job", "cpudist")
    namespace: str = option("NAME", values.namespace, "namespace", "default")
    image: str = option("IMAGE", values.image, "made from the Dockerfile", f"cpudist:{__version__}")
    replicas: int = option("N", values.count, "pods that train", "2")
    ranks_per_pod: int = option("N", values.count, "ranks in each of them", "1")
    cpus: int = option("N", values.cpus, "whole CPUs of each pod", "4")
    memory: int = option("AMOUNT", values.memory, "memory of each pod, /dev/shm included", "8Gi")
    shm: int | None = option("AMOUNT", values.memory, "size of /dev/shm (default 256Mi for each rank)")
    pvc: str | None = option(
        "CLAIM", values.claim, "PersistentVolumeClaim for data and checkpoints, shared by all pods"
    )
    mount_path: str = option("PATH", values.mount_path, "where the claim is mounted, and where TARGET starts", "/data")
    node_selector: Sequence[tuple[str, str]] = option(
        "KEY=VALUE", values.selector, "a label that nodes must have", several=True
    )
    toleration: Sequence[dict[str, Any]] = option(
        "KEY[=VALUE][:EFFECT]", values.toleration, "a taint of nodes to tolerate", several=True
    )
    grace: int = option("SECONDS", values.count, "for the checkpoint when a pod is evicted", "120")

    @property
    def metadata(self) -> dict[str, Any]:
        """The manifest's metadata."""
        return {"name": self.name, "namespace": self.namespace}

    @property
    def saving(self) -> int:
        """Seconds that ranks have to save a checkpoint, from the pod's SIGTERM on."""
        return self.grace - _END_SECONDS

    @property
    def shared_memory(self) -> int:
        """Size of /dev/shm in bytes."""
        return self.shm or _RANK_SHARED_MEMORY * self.ranks_per_pod

    def heading(self, pods: str = "pods") -> str:
        """Return the comment at the top of the manifest."""
        ranks = self.replicas * self.ranks_per_pod
        return f"{ranks} ranks: {self.replicas} {pods} of {self.ranks_per_pod}\nkubectl apply -f THIS_FILE"

    def contradictions(self) -> list[str]:
        """Return one line for each contradiction between values."""
        problems = []
        ranks, cpus = self.ranks_per_pod, self.cpus
        if ranks > cpus:
            problems.append(
                f"--ranks-per-pod {ranks}: more ranks than the {cpus} CPUs of a pod; give --cpus {ranks} or more"
            )
        if self.saving <= 0:
            problems.append(
                f"--grace {self.grace}: torchrun or `cpudist launch` needs {_END_SECONDS} seconds of it to end;"
                " give more"
            )
        least = self.shared_memory + _RANK_LEAST_MEMORY * ranks
        if self.memory < least:
            problems.append(
                f"--memory {quantity(self.memory)}: a pod with {number_of(ranks, 'rank')} needs {quantity(least)} at"
                f" least, {quantity(self.shared_memory)} of it for /dev/shm"
            )
        return problems

    def pod(self, container: str, command: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
        """Return the spec of a pod whose one container runs `command` with `arguments`."""
        mounts = [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]
        volumes: list[dict[str, Any]] = [{"name": _SHARED_MEMORY, "emptyDir": self._shared_memory_volume()}]
        main: dict[str, Any] = {"name": container, "image": self.image}
        if self.pvc:
            mounts.append({"name": _DATA, "mountPath": self.mount_path})
            why = "all pods mount it, so its access mode must be ReadWriteMany where they run on several nodes"
            volumes.append({"name": _DATA, "persistentVolumeClaim": {"claimName": Noted(self.pvc, why)}})
            main["workingDir"] = self.mount_path
        main |= {"command": list(command), "args": list(arguments), "env": self._variables()}
        main |= {"resources": _resources(self.cpus, self.memory), "volumeMounts": mounts}
        spec: dict[str, Any] = {
            "terminationGracePeriodSeconds": Noted(
                self.grace, "from SIGTERM, at which ranks save a checkpoint, to SIGKILL, in seconds"
            ),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": Noted(USER, "the group that may write to the volumes"),
            },
            "containers": [main],
            "volumes": volumes,
        }
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        if self.toleration:
            spec["tolerations"] = list(self.toleration)
        return spec

    def torchrun_pod(self, container: str, run: str) -> dict[str, Any]:
        """Return the spec of a pod in which torchrun starts the ranks; the pod's field `run` identifies the run."""
        command = ["torchrun", f"--nproc-per-node={self.ranks_per_pod}", "--no-python", "cpudist-train"]
        spec = self.pod(container, command, self.train)
        (main,) = spec["containers"]
        main["env"][:0] = self._run_id(run)
        # Without it torchrun kills its ranks 30 s after SIGTERM. torch 2.9 and newer read it.
        why = f"seconds after SIGTERM at which torchrun kills its ranks; the pod is killed after {self.grace}"
        timeout = {"name": "PET_SHUTDOWN_TIMEOUT", "value": Noted(str(self.saving), why)}
        main["env"].append(timeout)
        return spec

    def launcher_pod(self, run: str, command: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
        """Return the spec of a pod that starts the ranks in other pods and passes its variables on to them.

        Args:
            run: the field of the pod that identifies the run.
            command, arguments: what the container runs.
        """
        spec = self.pod("launcher", command, arguments)
        (main,) = spec["containers"]
        main["env"][:0] = self._run_id(run)
        main["resources"] = _resources(_LAUNCHER_CPUS, _LAUNCHER_MEMORY)
        main["volumeMounts"] = [mount for mount in main["volumeMounts"] if mount["name"] != _SHARED_MEMORY]
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != _SHARED_MEMORY]
        return spec

    def _run_id(self, field: str) -> list[dict[str, Any]]:
        if _RUN_ID in dict(self.env):
            return []
        why = "stays when ranks are started again: they go on from the newest checkpoint of this run"
        return [{"name": _RUN_ID, "valueFrom": {"fieldRef": {"fieldPath": Noted(field, why)}}}]

    def _variables(self) -> list[dict[str, Any]]:
        """Return the variables of the plan, each with its reason, and those of the user."""
        own = dict(self.env)
        found = self.planned_variables(self.cpus, self.ranks_per_pod, self.replicas)
        if not allocator_decided(own):
            why = "tcmalloc keeps freed memory, so a step takes about a fifth less time; the image has it"
            found["LD_PRELOAD"] = (_ALLOCATOR, why)
        return [
            *({"name": name, "value": Noted(value, why)} for name, (value, why) in found.items()),
            *({"name": name, "value": value} for name, value in own.items()),
        ]

    def _shared_memory_volume(self) -> dict[str, Any]:
        how = "--shm" if self.shm else "256Mi for each of the pod's ranks"
        why = (
            f"{how}; the default of containers is 64Mi, which two ranks use up. Its content counts towards the memory"
            f" limit of {quantity(self.memory)}: {quantity(self.memory - self.shared_memory)} are left for the ranks"
        )
        return {"medium": "Memory", "sizeLimit": Noted(quantity(self.shared_memory), why)}


def _resources(cpus: int, memory: int) -> dict[str, Any]:
    """Return requests that are equal to the limits; `memory` is in bytes."""
    amounts = {"cpu": str(cpus), "memory": quantity(memory)}
    why = "equal to the limits, and whole CPUs: QoS class Guaranteed, so a node may give the pod CPUs of its own"
    return {"requests": Noted(amounts, why), "limits": dict(amounts)}
