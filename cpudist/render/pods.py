"""What pods of all kinds have in common: resources, variables from the placement plan, shared memory, volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cpudist.pinning.preload import allocator_decided
from cpudist.render.document import Noted
from cpudist.render.ranks import planned, reasons
from cpudist.render.values import MEBIBYTE, written
from cpudist.render.wishes import Wishes

USER = 1000  # of the Dockerfile's image

# By its bare name: where it lies differs between processors, and the loader looks there.
_ALLOCATOR = "libtcmalloc_minimal.so.4"
_LAUNCHER_CPUS, _LAUNCHER_MEMORY = 1, 1024 * MEBIBYTE
_SHARED_MEMORY, _DATA = "shared-memory", "data"


def variables(wishes: Wishes) -> list[dict[str, Any]]:
    """For the ranks: those of the plan, each with its reason, and the user's."""
    own, several = dict(wishes.env), wishes.replicas * wishes.ranks_per_pod > 1
    plan, found = planned(wishes.cpus, wishes.ranks_per_pod, own, wishes.arguments, several)
    if not allocator_decided(own):
        found["LD_PRELOAD"] = _ALLOCATOR
    why = reasons(plan, wishes.cpus)
    return [
        *({"name": name, "value": Noted(value, why[name])} for name, value in found.items()),
        *({"name": name, "value": value} for name, value in own.items()),
    ]


def pod(
    wishes: Wishes,
    container: str,
    command: Sequence[str],
    arguments: Sequence[str],
    ports: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The spec of a pod whose one container runs `command` with `arguments`."""
    mounts = [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]
    volumes: list[dict[str, Any]] = [{"name": _SHARED_MEMORY, "emptyDir": _shared_memory(wishes)}]
    main: dict[str, Any] = {"name": container, "image": wishes.image}
    if wishes.pvc:
        mounts.append({"name": _DATA, "mountPath": wishes.mount_path})
        why = "all pods mount it, so its access mode must be ReadWriteMany where they run on several nodes"
        volumes.append({"name": _DATA, "persistentVolumeClaim": {"claimName": Noted(wishes.pvc, why)}})
        main["workingDir"] = wishes.mount_path
    main |= {"command": list(command), "args": list(arguments), "env": variables(wishes)}
    main |= {"ports": list(ports)} if ports else {}
    main |= {"resources": resources(wishes.cpus, wishes.memory), "volumeMounts": mounts}
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": Noted(
            wishes.grace, "between SIGTERM, at which ranks save a checkpoint, and SIGKILL"
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
    return spec | scheduling(wishes)


def launcher(wishes: Wishes, container: str, command: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    """The spec of a pod that starts the ranks of other pods, and hands its variables on to them."""
    spec = pod(wishes, container, command, arguments)
    (main,) = spec["containers"]
    main["resources"] = resources(_LAUNCHER_CPUS, _LAUNCHER_MEMORY)
    own = {_SHARED_MEMORY}  # it shares no memory with anybody
    main["volumeMounts"] = [mount for mount in main["volumeMounts"] if mount["name"] not in own]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in own]
    return spec


def scheduling(wishes: Wishes) -> dict[str, Any]:
    """On which nodes pods run."""
    chosen: dict[str, Any] = {"nodeSelector": dict(wishes.node_selector)} if wishes.node_selector else {}
    return chosen | ({"tolerations": wishes.toleration} if wishes.toleration else {})


def resources(cpus: int, memory: int) -> dict[str, Any]:
    """Requests equal to limits."""
    amounts = {"cpu": str(cpus), "memory": written(memory)}
    why = "equal to the limits, and whole CPUs: QoS class Guaranteed, so a node may give the pod CPUs of its own"
    return {"requests": Noted(amounts, why), "limits": dict(amounts)}


def _shared_memory(wishes: Wishes) -> dict[str, Any]:
    size = wishes.shared_memory
    left = written(wishes.memory - size)
    how = "--shm" if wishes.shm else "256Mi for each of the pod's ranks"
    why = (
        f"{how}; containers have 64Mi otherwise, which two ranks use up. What lies in it counts towards the memory"
        f" limit of {written(wishes.memory)}: {left} are left for the ranks"
    )
    return {"medium": "Memory", "sizeLimit": Noted(written(size), why)}
