"""The template of a pod, which all kinds of Kubernetes jobs are made of, and its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpudist.console import number_of
from cpudist.render import values
from cpudist.render.document import Noted
from cpudist.render.job import RenderedJob, option
from cpudist.render.patch import merged, read_template
from cpudist.render.values import MEBIBYTE, quantity
from cpudist.version import __version__

_USER = 1000  # of the Dockerfile's image

# With the pod's securityContext below what the policy "restricted" of Kubernetes' pod security standards wants.
_UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_LAUNCHER_CPUS, _LAUNCHER_MEMORY = 1, 1024 * MEBIBYTE
_RUN_ID, _CACHE = "CPUDIST_RUN_ID", "HF_HOME"
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
    cpus: int = option("N", values.cpus, "whole CPUs (hardware threads) of each pod", "4")
    memory: int = option("AMOUNT", values.memory, "memory of each pod, /dev/shm included", "8Gi")
    shm: int | None = option("AMOUNT", values.memory, "size of /dev/shm (default 256Mi for each rank)")
    pvc: str | None = option(
        "CLAIM", values.claim, "PersistentVolumeClaim for data and checkpoints, shared by all pods"
    )
    mount_path: str = option("PATH", values.mount_path, "where the claim is mounted, and where TARGET starts", "/data")
    grace: int = option("SECONDS", values.count, "for the checkpoint when a pod is evicted", "120")
    patch: Mapping[str, Any] | None = option(
        "FILE", read_template, "a pod template in YAML, merged over that of each pod; its metadata goes to the job too"
    )

    @property
    def metadata(self) -> dict[str, Any]:
        """The manifest's metadata."""
        return {"name": self.name, "namespace": self.namespace, **(self.patch or {}).get("metadata", {})}

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

    def template(self, container: Mapping[str, Any], trains: bool = True) -> dict[str, Any]:
        """Return the template of a pod with one container, the user's patch merged over it.

        Args:
            container: its name, `command`, `args`, and what else this container has.
            trains: whether ranks run in it, which need the CPUs, the memory and /dev/shm.
        """
        mounts: list[dict[str, Any]] = []
        volumes: list[dict[str, Any]] = []
        main = {"name": container["name"], "image": self.image}
        if trains:
            mounts.append({"name": _SHARED_MEMORY, "mountPath": "/dev/shm"})
            volumes.append({"name": _SHARED_MEMORY, "emptyDir": self._shared_memory_volume()})
        if self.pvc:
            mounts.append({"name": _DATA, "mountPath": self.mount_path})
            why = "all pods mount it, so its access mode must be ReadWriteMany where they run on several nodes"
            volumes.append({"name": _DATA, "persistentVolumeClaim": {"claimName": Noted(self.pvc, why)}})
            main["workingDir"] = self.mount_path
        resources = _resources(self.cpus, self.memory) if trains else _resources(_LAUNCHER_CPUS, _LAUNCHER_MEMORY)
        main |= {**container, "resources": resources, "volumeMounts": mounts, "securityContext": _UNPRIVILEGED}
        spec: dict[str, Any] = {
            "terminationGracePeriodSeconds": Noted(
                self.grace, "from SIGTERM, at which ranks save a checkpoint, to SIGKILL, in seconds"
            ),
            "automountServiceAccountToken": Noted(False, "ranks do not talk to Kubernetes"),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": Noted(_USER, "the group that may write to the volumes"),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [main],
            "volumes": volumes,
        }
        template: dict[str, Any] = merged({"spec": spec}, self.patch or {})
        return template

    def torchrun_template(self, container: str, run: str, first: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """Return the template of a pod in which torchrun starts the ranks.

        Args:
            container: its name.
            run: the field of the pod that identifies the run.
            first: the command that runs torchrun, where that is not the container's command itself.
            more: further fields of the container.
        """
        command = [*first, "torchrun", f"--nproc-per-node={self.ranks_per_pod}", "--no-python", "cpudist-train"]
        # Without it torchrun kills its ranks 30 s after SIGTERM. torch 2.9 and newer read it.
        why = f"seconds after SIGTERM at which torchrun kills its ranks; the pod is killed after {self.grace}"
        env = [*self.variables(run), {"name": "PET_SHUTDOWN_TIMEOUT", "value": Noted(str(self.saving), why)}]
        template = self.template({"name": container, "command": command, "args": self.train, "env": env, **more})
        why = (
            "so that torchrun is not process 1, which its ranks could not end: where worker 0's node is lost, it hangs"
        )
        template["spec"]["shareProcessNamespace"] = Noted(True, why)
        return template

    @property
    def train(self) -> list[str]:
        """Arguments of cpudist-train, escaped for Kubernetes."""
        return [_literal(word) for word in super().train]

    def variables(self, run: str) -> list[dict[str, Any]]:
        """Return the variables of the ranks; the pod's field `run` identifies the run."""
        own = dict(self.env)
        found: list[dict[str, Any]] = []
        if _RUN_ID not in own:
            why = "stays when ranks are started again: they go on from the newest checkpoint of this run"
            found.append({"name": _RUN_ID, "valueFrom": {"fieldRef": {"fieldPath": Noted(run, why)}}})
        if self.pvc and _CACHE not in own:
            why = "models and data sets are downloaded once, for all pods and jobs"
            found.append({"name": _CACHE, "value": Noted(_literal(f"{self.mount_path}/huggingface"), why)})
        return found + [{"name": name, "value": _literal(value)} for name, value in own.items()]

    def _shared_memory_volume(self) -> dict[str, Any]:
        how = "--shm" if self.shm else "256Mi for each of the pod's ranks"
        why = (
            f"{how}; the default of containers is 64Mi, which two ranks use up. Its content counts towards the memory"
            f" limit of {quantity(self.memory)}: {quantity(self.memory - self.shared_memory)} are left for the ranks"
        )
        return {"medium": "Memory", "sizeLimit": Noted(quantity(self.shared_memory), why)}


def _literal(text: str) -> str:
    """Escape `text` for fields in which Kubernetes replaces `$(NAME)` and `$$`."""
    return text.replace("$", "$$")


def _resources(cpus: int, memory: int) -> dict[str, Any]:
    """Return requests that are equal to the limits; `memory` is in bytes."""
    amounts = {"cpu": str(cpus), "memory": quantity(memory)}
    why = "equal to the limits, and whole CPUs: QoS class Guaranteed, so a node may give the pod CPUs of its own"
    return {"requests": Noted(amounts, why), "limits": dict(amounts)}
