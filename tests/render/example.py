"""A job with everything said, and a look at what became of it."""

from __future__ import annotations

from typing import Any

ALL = [
    *("--name", "digits", "--namespace", "team-a", "--image", "registry:5000/team/cpudist:1", "--replicas", "3"),
    *("--ranks-per-pod", "2", "--cpus", "16", "--memory", "32Gi", "--shm", "2Gi", "--pvc", "data"),
    *("--mount-path", "/work", "--node-selector", "disk=ssd", "--node-selector", "zone=b", "--env", "HF_HOME=/work/hf"),
    *("--toleration", "batch=yes:NoSchedule", "--toleration", "spot", "--grace", "300"),
]


def env(container: dict[str, Any]) -> dict[str, str]:
    """The variables of a container."""
    return {variable["name"]: variable["value"] for variable in container["env"]}
