"""Pods, and the Job of a TrainingRuntime, match Kubernetes' own schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from render.example import ALL

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")

VERSION = kubernetes_validate.latest_version()


def as_documents(node: Any) -> Iterator[dict[str, Any]]:
    """Yield a Pod or Job for each template of one."""
    if isinstance(node, dict):
        spec = node.get("spec", {})
        head = {"metadata": {**node.get("metadata", {}), "name": "digits"}, "spec": spec}
        if "containers" in spec:
            yield {"apiVersion": "v1", "kind": "Pod", **head}
        elif "backoffLimit" in spec:
            yield {"apiVersion": "batch/v1", "kind": "Job", **head}
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from as_documents(part)


@pytest.mark.parametrize(
    ("kind", "found"),
    [("pytorchjob", ["Pod"]), ("mpijob", ["Pod", "Pod"]), ("trainjob", ["Job", "Pod"])],
)
@pytest.mark.parametrize("words", [[], ALL])
def test_they_are_what_the_schemas_want(
    documents: Callable[..., list[dict[str, Any]]], kind: str, found: list[str], words: list[str]
) -> None:
    made = list(as_documents(documents(kind, *words)))
    assert [one["kind"] for one in made] == found
    for one in made:
        kubernetes_validate.validate(one, VERSION, strict=True)


def test_a_field_that_there_is_not_is_refused(documents: Callable[..., list[dict[str, Any]]]) -> None:
    (pod,) = as_documents(documents("pytorchjob"))
    pod["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(pod, VERSION, strict=True)
