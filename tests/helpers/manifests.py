"""examples/kubernetes, as kubectl reads it, and the CRDs' schemas, which scripts/schemas.py makes."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jobs
import jsonschema
import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
KINDS = ("pytorchjob", "mpijob", "trainjob")
SCHEMAS = Path(__file__).parents[1] / "kubernetes" / "schemas"


def from_file(kind: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{kind}.yaml").read_text()))


def kustomized(folder: Path, kind: str, elastic: bool = False, **settings: str) -> list[dict[str, Any]]:
    """Return the manifests of a kind with settings, the job before its runtime; `folder` is for a copy of the files."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl (Debian: kubernetes-client) is not installed")
    copy = shutil.copytree(FOLDER, folder / kind, dirs_exist_ok=True)
    file = copy / "kustomization.yaml"
    text = file.read_text().replace("- pytorchjob.yaml", f"- {kind}.yaml")
    if elastic:
        text = text.replace("# patches", "patches").replace("# - path", "- path")
    for name, value in settings.items():
        text, found = re.subn(rf"- {name}=\S+", f"- {name}={value}", text)
        assert found == 1, name
    file.write_text(text)
    return list(yaml.safe_load_all(jobs.completed(["kubectl", "kustomize", str(copy)], timeout=60).stdout))


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping in a document, also those in other mappings."""
    if isinstance(node, dict):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(part)


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in mappings(documents) if "containers" in node.get("spec", {})]


def check_schema(document: dict[str, Any]) -> None:
    """Check a document against the schema of its kind.

    Raises:
        jsonschema.ValidationError: it does not match, or has a field that the schema does not have.
    """
    schema = json.loads((SCHEMAS / f"{document['kind'].lower()}.json").read_text())
    jsonschema.Draft202012Validator(_strict(schema)).validate(document)


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
