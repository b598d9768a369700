"""Merge a user's pod template over ours, as `kubectl patch` merges one: Kubernetes' strategic merge.

Mappings are merged key by key, and null removes a key. Items of the lists below are merged by one of their fields; a
first item without that field is merged into our first one, so a patch needs no container's name. Other lists are
replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpudist.console import one_line
from cpudist.render.document import Noted
from cpudist.render.values import Invalid

_ITEM_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "env", "volumes", "imagePullSecrets"), "name"),
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
_NO_TEMPLATE = "not a pod template: `metadata` with labels and annotations, and `spec` (kubectl explain pod.spec)"


def read_template(file: str) -> Any:
    """Return the pod template in a YAML file, or `Invalid`; a type of an option."""
    from ruamel.yaml import YAML  # late: most manifests have no patch
    from ruamel.yaml.error import YAMLError

    try:
        template = YAML(typ="safe").load(Path(file))
    except (OSError, ValueError, YAMLError) as error:
        return Invalid(file, f"cannot be read: {one_line(str(error))}")
    return template if _is_template(template) else Invalid(file, _NO_TEMPLATE)


def _is_template(value: Any) -> bool:
    if not (isinstance(value, Mapping) and value.keys() <= {"metadata", "spec"}):
        return False
    metadata, spec = value.get("metadata", {}), value.get("spec", {})
    if not (isinstance(metadata, Mapping) and metadata.keys() <= {"labels", "annotations"}):
        return False
    containers = spec.get("containers", [{}]) if isinstance(spec, Mapping) else None
    return isinstance(containers, list) and _are_mappings(containers)


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """Return `base` with `patch` merged over it; neither is changed.

    Args:
        base: a part of a manifest; None where there is none.
        patch: the same part of the patch.
        field: the name of that part.
    """
    if isinstance(base, Noted):
        base = base.value  # its comment explains the value that is replaced
    if isinstance(patch, Mapping):
        result = dict(base) if isinstance(base, Mapping) else {}
        for name, value in patch.items():
            result[name] = merged(result.get(name), value, name)
        return {name: value for name, value in result.items() if value is not None}
    if isinstance(patch, list) and isinstance(base, list) and field in _ITEM_KEYS and _are_mappings(patch):
        return _merged_items(base, patch, _ITEM_KEYS[field])
    return patch


def _merged_items(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = list(base)
    places = {item.get(key): place for place, item in enumerate(base)}
    for item in patch:
        name = item.get(key, base[0].get(key) if base else None)
        if name in places:
            result[places[name]] = merged(result[places[name]], item)
        else:
            result.append(merged(None, item))
    return result


def _are_mappings(items: list[Any]) -> bool:
    return bool(items) and all(isinstance(item, Mapping) for item in items)
