"""Schemas of the CRDs, reduced to the fields that are rendered. Run as a program, it makes them (schemas/README.md)."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SCHEMAS = Path(__file__).with_name("schemas")
FILES = {
    "PyTorchJob": ("pytorchjob.json", "kubeflow.org_pytorchjobs.yaml"),
    "MPIJob": ("mpijob.json", "kubeflow.org_mpijobs.yaml"),
    "TrainJob": ("trainjob.json", "trainer.kubeflow.org_trainjobs.yaml"),
    "TrainingRuntime": ("trainingruntime.json", "trainingruntime.json"),
}

# An object that has the first property keeps only these; other objects stay whole.
KEPT = (
    ("ephemeralContainers", {"containers", "nodeSelector", "securityContext", "terminationGracePeriodSeconds"}
     | {"tolerations", "volumes", "restartPolicy", "automountServiceAccountToken", "imagePullSecrets"}
     | {"shareProcessNamespace"}),
    ("livenessProbe", {"name", "image", "workingDir", "command", "args", "env", "ports", "resources", "volumeMounts"}
     | {"securityContext", "imagePullPolicy"}),
    ("seccompProfile", {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "seccompProfile"}
     | {"allowPrivilegeEscalation", "capabilities"}),
    ("valueFrom", {"name", "value", "valueFrom"}),
    ("configMapKeyRef", {"fieldRef", "secretKeyRef"}),
    ("awsElasticBlockStore", {"name", "emptyDir", "persistentVolumeClaim"}),
    ("elasticPolicy", {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}),
    ("rdzvBackend", {"minReplicas", "maxReplicas", "maxRestarts", "rdzvBackend"}),
    ("schedulingPolicy", {"cleanPodPolicy", "backoffLimit"}),
    ("podSpecOverrides", {"runtimeRef", "trainer"}),
    ("ownerReferences", {"name", "namespace", "labels", "annotations"}),
    ("mlPolicy", {"mlPolicy", "template"}),
    ("torch", {"numNodes", "torch"}),
    ("envInjection", set()),
    ("groupName", {"name", "template"}),
    ("replicatedJobs", {"replicatedJobs"}),
    ("podFailurePolicy", {"backoffLimit", "template"}),
)  # fmt: skip


def check(document: dict[str, Any]) -> None:
    """Check a document against the schema of its kind.

    Raises:
        jsonschema.ValidationError: it does not match, or has a field that the schema does not have.
    """
    jsonschema.Draft202012Validator(_strict(load(document["kind"]))).validate(document)


@cache
def load(kind: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / FILES[kind][0]).read_text())


def cut(file: Path) -> dict[str, Any]:
    """Return the reduced schema of a file: a CRD with one version, or JSON of pydantic's."""
    read = yaml.safe_load(file.read_text())
    if "$defs" in read:
        return _cut(_inlined(read, read["$defs"]))
    (version,) = read["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"].pop("status")
    return _cut(schema)


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return pydantic's schema without references, and without the nulls that it adds to optional fields."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if (found := node.get("anyOf")) and found[-1] == {"type": "null"} and len(found) == 2:
        node = found[0]
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    if "actual_instance" in node.get("properties", {}):  # pydantic's model of a quantity
        return {"type": ["integer", "string"]}
    named = {key: value for key, value in node.items() if key not in ("title", "default") or isinstance(value, dict)}
    return {key: _inlined(value, definitions) for key, value in named.items() if key != "$defs"}


def _cut(node: Any) -> Any:
    if isinstance(node, list):
        return [_cut(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: value for key, value in node.items() if not (key == "description" and isinstance(value, str))}
    properties = node.get("properties", {})
    for mark, names in KEPT:
        if mark in properties:
            assert set(node.get("required", ())) <= names, (mark, node["required"])
            node["properties"] = {name: value for name, value in properties.items() if name in names}
    return {key: _cut(value) for key, value in node.items()}


def _strict(node: Any) -> Any:
    """Return a schema that refuses unknown fields, as an API server does under strict validation."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {key: _strict(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and node.get("type") == "object":
        strict["additionalProperties"] = False
    return strict


if __name__ == "__main__":
    for _copy, _crd in FILES.values():
        (SCHEMAS / _copy).write_text(json.dumps(cut(Path(sys.argv[1]) / _crd), indent=1) + "\n")
