"""PyTorchJob (kubeflow.org/v1, training-operator 1.9): torchrun in each pod, which numbers the ranks.

With several ranks in a pod the operator's RANK is that of a pod, so something in the pod has to number its ranks:
torchrun does it from the operator's PET_* variables. How many there are stands in its command too, since the operator
sets PET_NPROC_PER_NODE only where there is a Master, and an elastic job has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpudist.render import document, pods, values
from cpudist.render import wishes as common
from cpudist.render.document import Noted
from cpudist.render.option import Kind, Option
from cpudist.render.ranks import train
from cpudist.render.wishes import Wishes

_PORT = 23456


@dataclass(frozen=True)
class PyTorchJobWishes(Wishes):
    """Those of a PyTorchJob; it is elastic where one of these is set."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    max_restarts: int | None = None

    @property
    def elastic(self) -> bool:
        """Whether ranks are started again, with as many pods as there are."""
        return any(value is not None for value in (self.min_replicas, self.max_replicas, self.max_restarts))


def check(given: Mapping[str, Any]) -> list[str]:
    """What does not fit together, one line each."""
    problems = common.contradictions(given)
    least, replicas, most = (given.get(name) for name in ("min_replicas", "replicas", "max_replicas"))
    if least and replicas and least > replicas:
        problems.append(f"--min-replicas {least}: more than --replicas {replicas}")
    if most and replicas and most < replicas:
        problems.append(f"--max-replicas {most}: fewer than --replicas {replicas}")
    return problems


def render(arguments: list[str], given: Mapping[str, Any]) -> str:
    """The manifest as text."""
    wishes = PyTorchJobWishes(arguments=arguments, **given)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": wishes.name, "namespace": wishes.namespace},
        "spec": {
            "nprocPerNode": Noted(str(wishes.ranks_per_pod), "ranks in each pod; `auto` would start one for each CPU"),
            **({"elasticPolicy": _elastic(wishes)} if wishes.elastic else {}),
            "runPolicy": {
                "cleanPodPolicy": Noted("Running", "pods that have ended stay, with their logs"),
                "backoffLimit": _backoff_limit(wishes),
            },
            "pytorchReplicaSpecs": _replicas(wishes),
        },
    }
    ranks = wishes.replicas * wishes.ranks_per_pod
    heading = f"{ranks} ranks: {wishes.replicas} pods of {wishes.ranks_per_pod}\nkubectl apply -f THIS_FILE"
    return document.write([job], heading)


def _backoff_limit(wishes: PyTorchJobWishes) -> Noted:
    if wishes.elastic:  # the operator takes 1 for the least
        return Noted(max(wishes.max_restarts or 0, 1), "so many containers may be started again, of all pods together")
    return Noted(0, "a rank that fails fails the job")


def _replicas(wishes: PyTorchJobWishes) -> dict[str, Any]:
    if wishes.elastic:  # torchrun's agents choose who is first, so there is no Master
        return {"Worker": _replica(wishes, wishes.replicas)}
    first = {"Master": _replica(wishes, 1)}
    return first | ({"Worker": _replica(wishes, wishes.replicas - 1)} if wishes.replicas > 1 else {})


def _replica(wishes: PyTorchJobWishes, replicas: int) -> dict[str, Any]:
    command = ["torchrun", f"--nproc-per-node={wishes.ranks_per_pod}", "--no-python", "cpudist-train"]
    spec = pods.pod(
        wishes, "pytorch", command, train(wishes.arguments), [{"name": "pytorchjob-port", "containerPort": _PORT}]
    )
    spec["containers"][0]["env"].append(shutdown_timeout(wishes))
    # An elastic job outlives a pod: its operator calls a job with a failed pod failed unless pods may be restarted.
    restart = "OnFailure" if wishes.elastic else "Never"
    return {"replicas": replicas, "restartPolicy": restart, "template": {"spec": spec}}


def shutdown_timeout(wishes: Wishes) -> dict[str, Any]:
    """The variable that gives ranks more than torchrun's 30 s to save a checkpoint (torch 2.9 and newer)."""
    why = f"torchrun kills its ranks so many seconds after SIGTERM; the pod is killed after {wishes.grace}"
    return {"name": "PET_SHUTDOWN_TIMEOUT", "value": Noted(str(wishes.saving), why)}


def _elastic(wishes: PyTorchJobWishes) -> dict[str, Any]:
    least, most = wishes.min_replicas or wishes.replicas, wishes.max_replicas or wishes.replicas
    return {
        "minReplicas": least,
        "maxReplicas": most,
        "maxRestarts": wishes.max_restarts or 0,
        "rdzvBackend": "c10d",
    }


KIND = Kind(
    "pytorchjob",
    "a PyTorchJob: torchrun in each pod",
    (
        *common.OPTIONS,
        Option("--min-replicas", "N", values.count, "elastic: go on with so few pods"),
        Option("--max-replicas", "N", values.count, "elastic: take up to so many pods (default: --replicas)"),
        Option("--max-restarts", "N", values.count_or_none, "elastic: start the ranks again so often (default 0)"),
    ),
    check,
    render,
)
