"""What pods of all kinds have in common: resources, variables from the placement plan, shared memory, volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpudist.machine.description import Machine
from cpudist.machine.limits import Limits
from cpudist.machine.topology import Cpu, assemble
from cpudist.pinning.preload import allocator_decided
from cpudist.pinning.wishes import data_workers
from cpudist.placement.by_hand import by_hand
from cpudist.placement.openmp import THREADS, threads_set
from cpudist.placement.place import make_plan
from cpudist.placement.plan import Plan
from cpudist.placement.plan import Wishes as PlanWishes
from cpudist.render.document import Noted
from cpudist.render.values import MEBIBYTE, written
from cpudist.render.wishes import Wishes

USER = 1000  # of the Dockerfile's image

# By its bare name: where it lies differs between processors, and the loader looks there.
_ALLOCATOR = Path("libtcmalloc_minimal.so.4")
_LAUNCHER_CPUS, _LAUNCHER_MEMORY = 1, 1024 * MEBIBYTE
_SHARED_MEMORY, _DATA = "shared-memory", "data"


def train(wishes: Wishes) -> list[str]:
    """The words after `cpudist-train`."""
    own = [] if "--checkpoint-on-signal" in wishes.arguments else ["--checkpoint-on-signal"]
    return [*own, *wishes.arguments]


def plan_of(wishes: Wishes) -> Plan:
    """The plan for the ranks of one pod. Its CPUs have no numbers yet: which ones they are, the node decides."""
    topology = assemble(Cpu(number, core=number) for number in range(wishes.cpus))
    threads, variable = threads_set(dict(wishes.env)) or (None, THREADS)
    several = wishes.replicas * wishes.ranks_per_pod > 1
    asked = PlanWishes(wishes.ranks_per_pod, data_workers(wishes.arguments), False, threads, variable, several)
    return replace(make_plan(Machine(topology, Limits()), asked), pinned=False)


def variables(wishes: Wishes) -> list[dict[str, Any]]:
    """For the ranks: those of the plan, each with its reason, and the user's."""
    own, plan = dict(wishes.env), plan_of(wishes)
    preload = None if allocator_decided(own) else _ALLOCATOR
    # Ranks place themselves, also under Intel MPI, whose own pinning the launcher switches off.
    planned = {name: value for name, value in by_hand(plan, own, preload).variables.items() if name[:6] != "I_MPI_"}
    why = _reasons(wishes, plan)
    return [
        *({"name": name, "value": Noted(value, why[name])} for name, value in planned.items()),
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


def _reasons(wishes: Wishes, plan: Plan) -> dict[str, str]:
    first = plan.ranks[0]
    kept = {"to move messages": first.communication_cpus, "to load data": first.data_cpus}
    less = " and ".join(f"{len(cpus)} {what}" for what, cpus in kept.items() if cpus)
    without = f"; of each rank's CPUs the plan keeps {less}" if less else ""
    return {
        THREADS: f"OpenMP's and torch's threads of each rank: {wishes.cpus} CPUs, divided by the pod's ranks{without}",
        "CCL_WORKER_OFFLOAD": "no CPU can be spared for a worker thread of oneCCL, which would slow the computation",
        "CCL_WORKER_COUNT": "one worker thread of oneCCL, on the CPU that the plan keeps for messages",
        "LD_PRELOAD": "tcmalloc keeps freed memory, so a step takes about a fifth less time; the image has it",
    }
