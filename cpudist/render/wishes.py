"""What is asked for of a job of pods: its options, the values together, and what they contradict each other in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.render import values
from cpudist.render.option import Option
from cpudist.version import __version__

# What MPI and processes that load data share in /dev/shm, for each rank; cpudist's own shared memory lies elsewhere.
SHARED_MEMORY = 256 * values.MEBIBYTE
# What `cpudist launch` asks of a host: a rank that has imported torch and made its process group.
LEAST_MEMORY = 400 * values.MEBIBYTE
# Between a pod's SIGTERM and its SIGKILL: what saving a checkpoint may take.
_GRACE_SECONDS = "120"
# Of that: what the launcher in a pod (torchrun, `cpudist launch`) needs after its ranks.
_END_SECONDS = 10
_IMAGE = f"cpudist:{__version__}"

OPTIONS = (
    Option("--name", "NAME", values.name, "the job's name (default cpudist)", "cpudist"),
    Option("--namespace", "NAME", values.namespace, "where it runs (default: the namespace default)", "default"),
    Option("--image", "IMAGE", values.image, f"made from the Dockerfile (default {_IMAGE})", _IMAGE),
    Option("--replicas", "N", values.count, "pods that train (default 2)", "2"),
    Option("--ranks-per-pod", "N", values.count, "ranks in each of them (default 1)", "1"),
    Option("--cpus", "N", values.cpus, "whole CPUs of each pod (default 4)", "4"),
    Option("--memory", "AMOUNT", values.memory, "of each pod, /dev/shm included (default 8Gi)", "8Gi"),
    Option("--shm", "AMOUNT", values.memory, "of it for /dev/shm (default 256Mi for each rank)"),
    Option("--pvc", "CLAIM", values.claim, "the PersistentVolumeClaim for data and checkpoints, shared by all pods"),
    Option("--mount-path", "PATH", values.mount_path, "where it is, and where TARGET starts (default /data)", "/data"),
    Option("--node-selector", "KEY=VALUE", values.selector, "a label that nodes must have", several=True),
    Option("--toleration", "KEY[=VALUE][:EFFECT]", values.toleration, "a taint of nodes to accept", several=True),
    Option("--env", "NAME=VALUE", values.variable, "a variable for all ranks", several=True),
    Option(
        "--grace", "SECONDS", values.count, "for the checkpoint when a pod is evicted (default 120)", _GRACE_SECONDS
    ),
)


@dataclass(frozen=True)
class Wishes:
    """A job of pods; memory in bytes, `grace` in seconds.

    Attributes:
        arguments: of cpudist-train.
        shm: None: as much as the ranks need.
        pvc: None: what is written is lost with its pod.
    """

    arguments: list[str]
    name: str
    namespace: str
    image: str
    replicas: int
    ranks_per_pod: int
    cpus: int
    memory: int
    shm: int | None
    pvc: str | None
    mount_path: str
    node_selector: list[tuple[str, str]]
    toleration: list[dict[str, Any]]
    env: list[tuple[str, str]]
    grace: int

    @property
    def saving(self) -> int:
        """The seconds that ranks get to save a checkpoint, from the pod's SIGTERM on."""
        return self.grace - _END_SECONDS

    @property
    def shared_memory(self) -> int:
        """The size of /dev/shm, in bytes."""
        return self.shm or SHARED_MEMORY * self.ranks_per_pod


def contradictions(given: Mapping[str, Any]) -> list[str]:
    """What does not fit together, one line each."""
    problems = []
    ranks, cpus, memory = given.get("ranks_per_pod"), given.get("cpus"), given.get("memory")
    if ranks and cpus and ranks > cpus:
        problems.append(
            f"--ranks-per-pod {ranks}: more ranks than the {cpus} CPUs of a pod; give --cpus {ranks} or more"
        )
    grace = given.get("grace")
    if grace and grace <= _END_SECONDS:
        problems.append(
            f"--grace {grace}: {_END_SECONDS} seconds of it are for what starts the ranks to end; give more"
        )
    if ranks and memory and "shm" in given:
        shm = given["shm"] or SHARED_MEMORY * ranks
        least = shm + LEAST_MEMORY * ranks
        if memory < least:
            problems.append(
                f"--memory {values.written(memory)}: {ranks} ranks need {values.written(least)} at least,"
                f" {values.written(shm)} of it for /dev/shm"
            )
    return problems
