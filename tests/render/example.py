"""A job with all options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PATCH = Path(__file__).parents[2] / "examples" / "pod.yaml"
ALL = [
    *("--name", "digits", "--namespace", "team-a", "--image", "registry:5000/team/cpudist:1", "--replicas", "3"),
    *("--ranks-per-pod", "2", "--cpus", "16", "--memory", "32Gi", "--shm", "2Gi", "--pvc", "data"),
    *("--mount-path", "/work", "--env", "HF_HOME=/work/hf", "--grace", "300", "--patch", str(PATCH)),
]


def env(container: dict[str, Any], pod: str = "pod") -> dict[str, str]:
    """Return the variables of a container in a pod of this name, as Kubernetes sets them."""
    found: dict[str, str] = {}
    for variable in container["env"]:
        if "value" in variable:
            value = expanded(variable["value"], found)
        elif "fieldRef" in variable["valueFrom"]:
            value = f"{pod}'s {variable['valueFrom']['fieldRef']['fieldPath']}"
        else:
            value = "{key} of {name}".format(**variable["valueFrom"]["secretKeyRef"])
        found[variable["name"]] = value
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """Return what Kubernetes makes of a text of a command: k8s.io/kubernetes/third_party/forked/golang/expansion."""
    return re.sub(r"\$(?:\$|\((.*?)\))", lambda found: variables.get(found[1], found[0]) if found[1] else "$", text)
