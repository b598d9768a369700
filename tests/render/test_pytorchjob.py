"""The PyTorchJob: its CRD's schema, and its content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import ValidationError
from render import schemas
from render.example import ALL, env

Documents = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("words", [[], ["--replicas", "1"], ALL, [*ALL, "--min-replicas", "1", "--max-restarts", "5"]])
def test_it_is_what_the_schema_wants(documents: Documents, words: list[str]) -> None:
    (job,) = documents("pytorchjob", *words)
    schemas.check(job)


def test_a_field_that_the_schema_does_not_have_is_refused(documents: Documents) -> None:
    (job,) = documents("pytorchjob")
    job["spec"]["runPolicy"]["cleanPodPolicies"] = "Running"
    with pytest.raises(ValidationError, match="cleanPodPolicies"):
        schemas.check(job)


def test_what_was_asked_for_is_there(documents: Documents) -> None:
    (job,) = documents("pytorchjob", *ALL)
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("digits", "team-a")
    assert job["spec"]["nprocPerNode"] == "2"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in replicas.items()} == {"Worker": 3}
    pod = replicas["Worker"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][3:] == ["torchrun", "--nproc-per-node=2", "--no-python", "cpudist-train"]
    train = ["images", "--dataset_name", "digits", "--output_dir", "out", "--do_train"]
    assert container["args"] == ["--checkpoint-on-signal", *train]
    assert container["workingDir"] == "/work"
    assert container["resources"]["limits"] == {"cpu": "16", "memory": "32Gi"}
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} == {
        "shared-memory": "/dev/shm",
        "data": "/work",
    }
    assert pod["volumes"] == [
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [
        {"key": "batch", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert pod["terminationGracePeriodSeconds"] == 300
    assert env(container) == {
        "CPUDIST_RUN_ID": "pod's metadata.uid",
        "HF_HOME": "/work/hf",
        "PET_SHUTDOWN_TIMEOUT": "290",
        "HF_TOKEN": "token of hugging-face",
        "CPUDIST_TOKEN": "token of cpudist",
    }


def test_what_the_user_sets_wins(documents: Documents) -> None:
    (job,) = documents("pytorchjob", "--pvc", "data", "--env", "OMP_NUM_THREADS=3", "--env", "CPUDIST_RUN_ID=mine")
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    given = {"OMP_NUM_THREADS": "3", "CPUDIST_RUN_ID": "mine", "HF_HOME": "/data/huggingface"}
    assert env(container) == {**given, "PET_SHUTDOWN_TIMEOUT": "110"}
    assert len(container["env"]) == len(env(container))


def test_a_job_is_workers_that_all_have_to_live(documents: Documents) -> None:
    """Beside a Master the operator would add containers, which are not of QoS class Guaranteed, to the workers."""
    (job,) = documents("pytorchjob", "--replicas", "4")
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 4, "maxReplicas": 4, "maxRestarts": 0, "rdzvBackend": "c10d"}
    assert job["spec"]["runPolicy"]["backoffLimit"] == 0
    ((name, worker),) = job["spec"]["pytorchReplicaSpecs"].items()
    assert (name, worker["replicas"], worker["restartPolicy"]) == ("Worker", 4, "Never")


def test_an_elastic_job(documents: Documents) -> None:
    (job,) = documents("pytorchjob", "--replicas", "4", "--min-replicas", "2", "--max-restarts", "3")
    assert job["spec"]["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4, "maxRestarts": 3, "rdzvBackend": "c10d"}
    assert job["spec"]["runPolicy"]["backoffLimit"] == 3
    (worker,) = job["spec"]["pytorchReplicaSpecs"].values()
    assert (worker["replicas"], worker["restartPolicy"]) == (4, "OnFailure")


def test_every_computed_value_says_why(text: Callable[..., str]) -> None:
    lines = [line.strip() for line in text("pytorchjob", "--ranks-per-pod", "2").splitlines()]
    for start in (
        "nprocPerNode:",
        "backoffLimit:",
        "terminationGracePeriodSeconds:",
        "requests:",
        "sizeLimit:",
        "value:",
    ):
        for index in (index for index, line in enumerate(lines) if line.startswith(start)):
            assert lines[index - 1].startswith("# "), lines[index]
