"""TrainJob (trainer.kubeflow.org/v1alpha1) and the TrainingRuntime that it runs on: torchrun in each pod.

The runtimes that come with Kubeflow's Trainer have CUDA images, or Open MPI alone, and its controller refuses one for
Intel MPI or MPICH. So a runtime of the job's own comes with it. What varies from job to job stands in the TrainJob; of
the pod's spec it can change little, so volumes and the rest stand in the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpudist.render import document, pods
from cpudist.render import wishes as common
from cpudist.render.document import Noted
from cpudist.render.option import Kind
from cpudist.render.pytorchjob import shutdown_timeout
from cpudist.render.ranks import train
from cpudist.render.wishes import Wishes

_API = "trainer.kubeflow.org/v1alpha1"
_NODE = "node"  # Trainer knows its pods and their container by this name


def render(arguments: list[str], given: Mapping[str, Any]) -> str:
    """Both manifests as text."""
    wishes = Wishes(arguments=arguments, **given)
    ranks = wishes.replicas * wishes.ranks_per_pod
    heading = f"{ranks} ranks: {wishes.replicas} pods of {wishes.ranks_per_pod}\nkubectl apply -f THIS_FILE"
    return document.write([_runtime(wishes), _job(wishes)], heading)


def _job(wishes: Wishes) -> dict[str, Any]:
    (container,) = _pod(wishes)["containers"]
    taken = ("image", "command", "args", "env")
    return {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": _metadata(wishes),
        "spec": {
            "runtimeRef": {"apiGroup": _API.partition("/")[0], "kind": "TrainingRuntime", "name": wishes.name},
            "trainer": {
                "numNodes": wishes.replicas,
                "numProcPerNode": Noted(
                    wishes.ranks_per_pod, "ranks in each pod; `auto`, the default, would start one for each CPU"
                ),
                **{name: container[name] for name in taken},
                "resourcesPerNode": container["resources"],
            },
        },
    }


def _runtime(wishes: Wishes) -> dict[str, Any]:
    pod = _pod(wishes)
    (container,) = pod["containers"]
    # Trainer replaces these by the job's.
    pod["containers"] = [{name: value for name, value in container.items() if name not in ("args", "env", "resources")}]
    backoff = Noted(0, "a rank that fails fails the job; Kubernetes would start its pod again, six times, alone")
    step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    template = {
        "metadata": {"labels": step},
        "spec": {"backoffLimit": backoff, "template": {"spec": {"restartPolicy": "Never", **pod}}},
    }
    return {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": _metadata(wishes),
        "spec": {
            "mlPolicy": {"numNodes": wishes.replicas, "torch": {"numProcPerNode": wishes.ranks_per_pod}},
            "template": {"spec": {"replicatedJobs": [{"name": _NODE, "template": template}]}},
        },
    }


def _metadata(wishes: Wishes) -> dict[str, Any]:
    return {"name": wishes.name, "namespace": wishes.namespace}


def _pod(wishes: Wishes) -> dict[str, Any]:
    command = ["torchrun", f"--nproc-per-node={wishes.ranks_per_pod}", "--no-python", "cpudist-train"]
    spec = pods.pod(wishes, _NODE, command, train(wishes.arguments))
    spec["containers"][0]["env"].append(shutdown_timeout(wishes))
    return spec


KIND = Kind(
    "trainjob",
    "a TrainJob and its TrainingRuntime: torchrun in each pod",
    common.OPTIONS,
    common.contradictions,
    render,
)
