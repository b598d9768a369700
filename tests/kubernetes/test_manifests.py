"""examples/kubernetes against schemas, the pod security standard "restricted" and kubectl."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import FOLDER, KINDS, check_schema, from_file, kustomized, mappings, pods
from mpis import MPIS, named

SETTINGS = {"name": "digits", "image": "team/cpudist:1", "replicas": "3", "ranks": "5", "cpus": "16", "memory": "32Gi"}
# Volumes of the pod security standards' policy "restricted".
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def not_restricted(pod: dict[str, Any]) -> list[str]:
    """Return what the pod security standards' policy "restricted" (Kubernetes 1.25 and newer) refuses in a pod."""
    own = pod.get("securityContext", {})
    problems = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    problems += [str(volume) for volume in pod["volumes"] if not volume.keys() - {"name"} <= VOLUMES]
    for container in pod["containers"] + pod.get("initContainers", []):
        context = own | container.get("securityContext", {})
        allowed = {
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "seccompProfile": context.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "runAsNonRoot": context.get("runAsNonRoot") is True and context.get("runAsUser") != 0,
            "privileged": not context.get("privileged") and "procMount" not in context,
            "hostPort": not any("hostPort" in port for port in container.get("ports", [])),
            "sysctls": not context.keys() & {"sysctls", "seLinuxOptions", "appArmorProfile", "windowsOptions"},
        }
        problems += [name for name, passes in allowed.items() if not passes]
    return problems


def check_pod(pod: dict[str, Any]) -> None:
    """Check a pod against Kubernetes' schema, the policy, and the rules of QoS class Guaranteed."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    version = validate.latest_version()
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod.get("metadata", {})}}
    validate.validate(head | {"spec": pod["spec"]}, version, strict=True)
    assert not_restricted(pod["spec"]) == []
    assert pod["spec"]["automountServiceAccountToken"] is False
    for container in pod["spec"]["containers"]:
        limits = container["resources"]["limits"]
        assert container["resources"].get("requests", limits) == limits
        assert limits["cpu"].isdecimal()


@pytest.mark.job
@pytest.mark.parametrize(("kind", "elastic"), [*((kind, False) for kind in KINDS), ("pytorchjob", True)])
def test_manifests_are_valid_restricted_and_guaranteed(kind: str, elastic: bool, tmp_path: Path) -> None:
    documents = kustomized(tmp_path, kind, elastic)
    for document in documents:
        check_schema(document)
    found = pods(documents)
    assert len(found) == (2 if kind == "mpijob" else 1)
    for pod in found:
        check_pod(pod)
    if not elastic:  # without kustomize they are the same, but for the namespace
        assert {one["metadata"].pop("namespace") for one in documents} == {"kubeflow"}
        assert documents == from_file(kind)


def test_files_without_settings_are_so_too() -> None:
    """A TrainJob that `cpudist launch` starts, and the pod that copies files out."""
    documents = from_file("trainjob_mpi")
    for document in documents:
        check_schema(document)
    for pod in [*pods(documents), yaml.safe_load((FOLDER / "reader.yaml").read_text())]:
        check_pod(pod)


@pytest.mark.job
@pytest.mark.parametrize("kind", KINDS)
def test_each_setting_goes_everywhere(kind: str, tmp_path: Path) -> None:
    documents = kustomized(tmp_path, kind, **SETTINGS, claim="mine")
    found = list(mappings(documents))

    def values(key: str) -> set[Any]:
        return {str(one[key]) for one in found if not isinstance(one.get(key, []), (dict, list))}

    launcher = kind == "mpijob"  # which has one replica, with resources of its own
    assert {one["metadata"]["name"] for one in documents} == {"digits"}
    assert {one["name"] for one in found if one.get("kind") == "TrainingRuntime" and "name" in one} <= {"digits"}
    assert (values("image"), values("claimName")) == ({"team/cpudist:1"}, {"mine"})
    assert values("replicas") | values("numNodes") == {"3"} | ({"1"} if kind != "pytorchjob" else set())
    assert values("nprocPerNode") | values("slotsPerWorker") | values("numProcPerNode") == {"5"}
    assert {one["value"] for one in found if one.get("name") == "PET_NPROC_PER_NODE"} <= {"5"}
    assert (values("cpu"), values("memory")) == ({"16", *"1" * launcher}, {"32Gi", *(["1Gi"] if launcher else [])})


def test_a_worker_of_an_mpijob_finds_the_ranks_of_each_mpi() -> None:
    variables = "|".join(dict.fromkeys(named(mpi).rank_variable for mpi in MPIS))
    assert f"'^({variables})='" in (FOLDER / "mpijob.yaml").read_text()
