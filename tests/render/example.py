"""A job with all options."""

from __future__ import annotations

from typing import Any

ALL = [
    *("--name", "digits", "--namespace", "team-a", "--image", "registry:5000/team/cpudist:1", "--replicas", "3"),
    *("--ranks-per-pod", "2", "--cpus", "16", "--memory", "32Gi", "--shm", "2Gi", "--pvc", "data"),
    *("--mount-path", "/work", "--node-selector", "disk=ssd", "--node-selector", "zone=b", "--env", "HF_HOME=/work/hf"),
    *("--toleration", "batch=yes:NoSchedule", "--toleration", "spot", "--grace", "300"),
]


def env(container: dict[str, Any], pod: str = "pod") -> dict[str, str]:
    """Return the variables of a container in a pod of this name."""

    def value(variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        return f"{pod}'s {variable['valueFrom']['fieldRef']['fieldPath']}"

    return {variable["name"]: value(variable) for variable in container["env"]}
