"""The TrainJob: its CRD's schema, and its TrainingRuntime as far as schemas of other CRDs cover it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from render import schemas
from render.example import ALL, env

Documents = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("words", [[], ALL])
def test_it_is_what_the_schema_wants(documents: Documents, words: list[str]) -> None:
    runtime, job = documents("trainjob", *words)
    schemas.check(job)
    # There is no copy of the CRD of runtimes. Its pods are those of the other CRDs.
    (pods,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    schemas.check_pod_template(pods["template"]["spec"]["template"])


def test_the_job_comes_with_its_runtime(documents: Documents) -> None:
    runtime, job = documents("trainjob", *ALL)
    assert runtime["metadata"] == job["metadata"] == {"name": "digits", "namespace": "team-a"}
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"] == "TrainingRuntime"
    trainer, policy = job["spec"]["trainer"], runtime["spec"]["mlPolicy"]
    assert trainer["numProcPerNode"] == policy["torch"]["numProcPerNode"] == 2
    assert trainer["numNodes"] == policy["numNodes"] == 3
    assert trainer["resourcesPerNode"]["requests"] == trainer["resourcesPerNode"]["limits"]
    assert env(trainer)["OMP_NUM_THREADS"] == "7"
    assert env(trainer)["CPUDIST_RUN_ID"] == "pod's metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
    # The names by which Trainer finds the pods.
    (pods,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert pods["name"] == "node"
    assert pods["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = pods["template"]["spec"]["template"]["spec"]["containers"]
    assert (container["name"], container["image"]) == ("node", trainer["image"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {"shared-memory", "data"}
