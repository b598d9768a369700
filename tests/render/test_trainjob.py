"""The TrainJob and its TrainingRuntime: their schemas, and their content."""

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
    schemas.check(runtime)
    schemas.check(job)


def test_the_job_comes_with_its_runtime(documents: Documents) -> None:
    runtime, job = documents("trainjob", *ALL)
    assert runtime["metadata"] == job["metadata"]
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("digits", "team-a")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"] == "TrainingRuntime"
    trainer, policy = job["spec"]["trainer"], runtime["spec"]["mlPolicy"]
    assert (trainer["numProcPerNode"], trainer["numNodes"]) == (2, 3)
    assert policy == {"numNodes": 3, "torch": {}}
    assert trainer["resourcesPerNode"]["requests"] == trainer["resourcesPerNode"]["limits"]
    assert env(trainer)["HF_TOKEN"] == "token of hugging-face"
    assert env(trainer)["CPUDIST_RUN_ID"] == "pod's metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
    # The names by which Trainer finds the pods.
    (pods,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert pods["name"] == "node"
    assert pods["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = pods["template"]["spec"]["template"]["spec"]["containers"]
    assert (container["name"], container["image"]) == ("node", trainer["image"])
    assert {mount["name"] for mount in container["volumeMounts"]} == {"shared-memory", "data"}
