"""examples/kubernetes, as kubectl reads it."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
KINDS = ("pytorchjob", "mpijob", "trainjob")


def from_file(kind: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / f"{kind}.yaml").read_text()))


def changed(folder: Path, kind: str, elastic: bool = False, **settings: str) -> Path:
    """Return a copy in `folder` whose kustomization.yaml has another kind and other settings."""
    copy = shutil.copytree(FOLDER, folder / kind, dirs_exist_ok=True)
    file = copy / "kustomization.yaml"
    text = file.read_text().replace("- pytorchjob.yaml", f"- {kind}.yaml")
    if elastic:
        text = text.replace("# patches", "patches").replace("# - path", "- path")
    for name, value in settings.items():
        text, found = re.subn(rf"- {name}=\S+", f"- {name}={value}", text)
        assert found == 1, name
    file.write_text(text)
    return copy


def kubectl(*words: str | Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl (Debian: kubernetes-client) is not installed")
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kustomized(folder: Path, kind: str, elastic: bool = False, **settings: str) -> list[dict[str, Any]]:
    """Return the manifests of a kind with settings, the job before its runtime; `folder` is for a copy of the files."""
    return list(yaml.safe_load_all(kubectl("kustomize", changed(folder, kind, elastic, **settings))))


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each mapping in a document, also those in other mappings."""
    if isinstance(node, dict):
        yield node
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(part)


def pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pod templates of documents."""
    return [node for node in mappings(documents) if "containers" in node.get("spec", {})]
