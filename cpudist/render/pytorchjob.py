"""PyTorchJob (kubeflow.org/v1, training-operator 1.9): torchrun in each pod.

There is no Master. Beside one the operator adds a container to the workers, whose requests are below its limits, so
they would not have QoS class Guaranteed. The agents of torchrun meet at worker 0 instead, as the elastic policy says,
and number the ranks. The operator sets PET_NPROC_PER_NODE only beside a Master, so torchrun's command has the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpudist.render import document, values
from cpudist.render.document import LiteralBlock, Noted
from cpudist.render.job import option
from cpudist.render.pods import PodJob

_PORT = 23456
_WAIT = """\
# Worker 0 may start much later than others, and torchrun looks for it for one minute only.
trap 'exit 143' TERM
until getent hosts "${PET_RDZV_ENDPOINT%:*}" > /dev/null; do sleep 1; done
exec "$0" "$@"
"""


@dataclass(frozen=True, kw_only=True)
class PyTorchJob(PodJob):
    """A PyTorchJob."""

    SUMMARY = "a PyTorchJob: torchrun in each pod"
    min_replicas: int | None = option("N", values.count, "elastic: fewest pods to continue with")
    max_replicas: int | None = option("N", values.count, "elastic: most pods to take (default: --replicas)")
    max_restarts: int | None = option(
        "N", values.count_from_zero, "elastic: how often to start the ranks again (default 0)"
    )

    @property
    def elastic(self) -> bool:
        """Whether ranks are started again, on as many pods as there are."""
        return any(value is not None for value in (self.min_replicas, self.max_replicas, self.max_restarts))

    def contradictions(self) -> list[str]:
        """Return one line for each contradiction between values."""
        problems = super().contradictions()
        if self.min_replicas and self.min_replicas > self.replicas:
            problems.append(f"--min-replicas {self.min_replicas}: more than --replicas {self.replicas}")
        if self.max_replicas and self.max_replicas < self.replicas:
            problems.append(f"--max-replicas {self.max_replicas}: fewer than --replicas {self.replicas}")
        return problems

    def render(self) -> str:
        """Return the manifest."""
        job = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": self.metadata,
            "spec": {
                "nprocPerNode": Noted(
                    str(self.ranks_per_pod), "ranks in each pod; `auto` would start one for each CPU"
                ),
                "elasticPolicy": self._elastic_policy(),
                "runPolicy": {
                    "cleanPodPolicy": Noted("Running", "pods that have ended stay, with their logs"),
                    "backoffLimit": self._backoff_limit(),
                },
                "pytorchReplicaSpecs": {"Worker": self._worker()},
            },
        }
        return document.write([job], self.heading())

    def _backoff_limit(self) -> Noted:
        if self.elastic:  # the operator refuses 0 for an elastic job
            return Noted(max(self.max_restarts or 0, 1), "how many containers of all pods may be started again")
        return Noted(0, "a rank that fails fails the job")

    def _worker(self) -> dict[str, Any]:
        port = {"name": "pytorchjob-port", "containerPort": _PORT}
        template = self.torchrun_template("pytorch", "metadata.uid", ["sh", "-c", LiteralBlock(_WAIT)], ports=[port])
        # An elastic job outlives a pod: the operator fails a job with a failed pod unless pods may be restarted.
        restart = "OnFailure" if self.elastic else "Never"
        return {"replicas": self.replicas, "restartPolicy": restart, "template": template}

    def _elastic_policy(self) -> dict[str, Any]:
        return {
            "minReplicas": self.min_replicas or self.replicas,
            "maxReplicas": self.max_replicas or self.replicas,
            "maxRestarts": self.max_restarts or 0,
            "rdzvBackend": "c10d",
        }
