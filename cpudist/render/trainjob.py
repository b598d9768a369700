"""TrainJob (trainer.kubeflow.org/v1alpha1) and the TrainingRuntime that it runs on: torchrun in each pod.

The runtimes that come with Kubeflow Trainer have CUDA images or Open MPI only, and its controller refuses a runtime for
Intel MPI or MPICH. So the job comes with a runtime of its own. The TrainJob has what varies from job to job. It cannot
change volumes and most other fields of the pod, so these are in the runtime.
"""

from __future__ import annotations

from typing import Any

from cpudist.render import document
from cpudist.render.document import Noted
from cpudist.render.pods import PodJob

_API = "trainer.kubeflow.org/v1alpha1"
_JOB_UID = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"  # new pods have it too
_NODE = "node"  # Trainer finds its pods and their container by this name


class TrainJob(PodJob):
    """A TrainJob with its TrainingRuntime."""

    SUMMARY = "a TrainJob and its TrainingRuntime: torchrun in each pod"

    def render(self) -> str:
        """Return both manifests."""
        return document.write([self._runtime(), self._job()], self.heading())

    def _job(self) -> dict[str, Any]:
        container, *_ = self.torchrun_template(_NODE, _JOB_UID)["spec"]["containers"]
        taken = ("image", "command", "args", "env")
        return {
            "apiVersion": _API,
            "kind": "TrainJob",
            "metadata": self.metadata,
            "spec": {
                "runtimeRef": {"apiGroup": _API.partition("/")[0], "kind": "TrainingRuntime", "name": self.name},
                "trainer": {
                    "numNodes": self.replicas,
                    "numProcPerNode": Noted(
                        self.ranks_per_pod, "ranks in each pod; `auto`, the default, would start one for each CPU"
                    ),
                    **{name: container[name] for name in taken},
                    "resourcesPerNode": container["resources"],
                },
            },
        }

    def _runtime(self) -> dict[str, Any]:
        pod = self.torchrun_template(_NODE, _JOB_UID)
        container, *_ = pod["spec"]["containers"]
        for name in ("args", "env", "resources"):  # Trainer replaces these by those of the job
            del container[name]
        pod["spec"]["restartPolicy"] = "Never"
        backoff = Noted(
            0, "a rank that fails fails the job; by default Kubernetes would start its pod again, up to six times"
        )
        step = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
        template = {
            "metadata": {"labels": step},
            "spec": {"backoffLimit": backoff, "template": pod},
        }
        return {
            "apiVersion": _API,
            "kind": "TrainingRuntime",
            "metadata": self.metadata,
            "spec": {
                "mlPolicy": {"numNodes": self.replicas, "torch": {}},  # only old versions have numProcPerNode here too
                "template": {"spec": {"replicatedJobs": [{"name": _NODE, "template": template}]}},
            },
        }
