"""Make the schemas in tests/kubernetes/schemas from the CRDs in a folder: schemas.py FOLDER; see the README there."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))
from manifests import FOLDER, KINDS, SCHEMAS, from_file

CRDS = {
    "PyTorchJob": "kubeflow.org_pytorchjobs.yaml",
    "MPIJob": "kubeflow.org_mpijobs.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
}


def reduced(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """Return the part of a schema that concerns `values`, which stand at its place in some documents."""
    schema = {key: value for key, value in schema.items() if key != "description"}
    inside = [one for value in values if isinstance(value, dict) for one in value.values()]
    if "properties" in schema:
        schema["properties"] = {
            name: reduced(part, found)
            for name, part in schema["properties"].items()
            if (found := [value[name] for value in values if name in value])
        }
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = reduced(schema["additionalProperties"], inside)
    if "items" in schema:
        schema["items"] = reduced(schema["items"], [item for value in values for item in value])
    return schema


if __name__ == "__main__":
    documents = [one for kind in KINDS for one in from_file(kind)]
    documents.append(yaml.safe_load((FOLDER / "elastic.yaml").read_text()))
    for document in documents:
        document["metadata"]["namespace"] = "kubeflow"  # as kubectl adds it
    for kind, file in CRDS.items():
        (version,) = yaml.safe_load((Path(sys.argv[1]) / file).read_text())["spec"]["versions"]
        schema = reduced(version["schema"]["openAPIV3Schema"], [one for one in documents if one["kind"] == kind])
        (SCHEMAS / f"{kind.lower()}.json").write_text(json.dumps(schema, indent=1) + "\n")
