"""The CRDs' schemas, cut down to the fields that are rendered: reads the copies, and makes them (schemas/README.md)."""

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
}

# Which properties stay in an object that has the named one; others stay whole.
KEPT = (
    ("ephemeralContainers", {"containers", "nodeSelector", "securityContext", "terminationGracePeriodSeconds"}
     | {"tolerations", "volumes", "restartPolicy"}),
    ("livenessProbe", {"name", "image", "workingDir", "command", "args", "env", "ports", "resources", "volumeMounts"}),
    ("seccompProfile", {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup"}),
    ("valueFrom", {"name", "value"}),
    ("awsElasticBlockStore", {"name", "emptyDir", "persistentVolumeClaim"}),
    ("elasticPolicy", {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}),
    ("rdzvBackend", {"minReplicas", "maxReplicas", "maxRestarts", "rdzvBackend"}),
    ("schedulingPolicy", {"cleanPodPolicy", "backoffLimit"}),
    ("podSpecOverrides", {"runtimeRef", "trainer"}),
)  # fmt: skip


def check(document: dict[str, Any]) -> None:
    """Fail unless the document is what its kind's schema wants."""
    jsonschema.Draft202012Validator(_strict(load(document["kind"]))).validate(document)


def check_pod_template(template: dict[str, Any]) -> None:
    """Fail unless this is a PodTemplateSpec."""
    replicas = load("PyTorchJob")["properties"]["spec"]["properties"]["pytorchReplicaSpecs"]
    schema = replicas["additionalProperties"]["properties"]["template"]
    jsonschema.Draft202012Validator(_strict(schema)).validate(template)


@cache
def load(kind: str) -> dict[str, Any]:
    return json.loads((SCHEMAS / FILES[kind][0]).read_text())


def cut(crd: Path) -> dict[str, Any]:
    """What is kept of the one version that a CRD's file serves."""
    (version,) = yaml.safe_load(crd.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"].pop("status")
    return _cut(schema)


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
    """As an API server is that is asked for strict validation: it refuses a field that it does not know."""
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
