"""What the pods of all kinds have in common: security, QoS class, words as they were written, the user's patch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from layouts import FOLDER
from render.example import ALL, PATCH, env, expanded

from cpudist.launchers.torchrun import Torchrun
from cpudist.pinning.plan_options import threads_of_user
from cpudist.pinning.rank_cpus import Starter, own_share
from cpudist.topology.limits import Limits
from cpudist.topology.machine import Machine, machine_from
from cpudist.topology.pinning_plan import PlanOptions
from cpudist.version import __version__

Documents = Callable[..., list[dict[str, Any]]]
KINDS = ("pytorchjob", "mpijob", "trainjob")
# Of the pod security standards' policy "restricted".
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def templates(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each pod template of a manifest."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from templates(part)


def not_restricted(pod: dict[str, Any]) -> list[str]:
    """Return what the pod security standards' policy "restricted" (Kubernetes 1.25 and newer) refuses in a pod."""
    own = pod.get("securityContext", {})
    problems = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    problems += [str(volume) for volume in pod["volumes"] if not volume.keys() - {"name"} <= VOLUMES]
    for container in pod["containers"]:
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [[], ALL])
def test_pods_are_restricted_and_guaranteed(documents: Documents, kind: str, words: list[str]) -> None:
    found = list(templates(documents(kind, *words)))
    assert len(found) == (2 if kind == "mpijob" else 1)
    for template in found:
        pod = template["spec"]
        assert not_restricted(pod) == []
        assert pod["automountServiceAccountToken"] is False
        assert "initContainers" not in pod
        for container in pod["containers"]:
            if kind != "trainjob":  # there the job has them
                assert container["resources"]["requests"] == container["resources"]["limits"]
        pod["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        assert not_restricted(pod) == ["allowPrivilegeEscalation"]


def test_the_pod_that_copies_files_out() -> None:
    pod = yaml.safe_load((PATCH.parent / "reader.yaml").read_text())
    assert not_restricted(pod["spec"]) == []
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_words_reach_the_ranks_as_they_are(documents: Documents, kind: str) -> None:
    words = ["$(HOME_OF)", "$$", "$$(HOME_OF)", "$HOME_OF", "$", "$(no end", "a$$$b"]
    target = ("--", "train.py", *words)
    *_, job = documents(kind, "--env", "HOME_OF=$(CPUDIST_RUN_ID) $$", "--env", "CPUDIST_RUN_ID=7", target=target)
    pods = [template["spec"]["containers"][0] for template in templates(job)]
    container = job["spec"]["trainer"] if kind == "trainjob" else pods[0]
    variables = env(container)
    assert variables["HOME_OF"] == "$(CPUDIST_RUN_ID) $$"
    assert [expanded(word, variables) for word in container["args"]][-len(words) :] == words


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_patch(documents: Documents, kind: str) -> None:
    found = documents(kind, "--pvc", "data", "--patch", str(PATCH))
    for one in [*found, *templates(found)]:
        assert one["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-queue"
        assert one["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
    for template in templates(found):
        pod = template["spec"]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert {"runAsUser": 2000, "fsGroup": 2000, "runAsNonRoot": True}.items() <= pod["securityContext"].items()
        (container,) = pod["containers"]
        assert container["imagePullPolicy"] == "Always"
        assert (container["image"], container["workingDir"]) == (f"cpudist:{__version__}", "/data")
        variables = env(found[-1]["spec"]["trainer"] if kind == "trainjob" else container)
        assert variables.items() >= {"HF_TOKEN": "token of hugging-face", "CPUDIST_TOKEN": "token of cpudist"}.items()


def test_how_a_patch_is_merged(documents: Documents, tmp_path: Path) -> None:
    (tmp_path / "patch.yaml").write_text("""
spec:
  securityContext: {runAsUser: null}
  terminationGracePeriodSeconds: 60
  volumes:
  - {name: scratch, emptyDir: {}}
  - name: shared-memory
    emptyDir: {sizeLimit: 1Gi}
  containers:
  - {name: pytorch, image: "mine:2", volumeMounts: [{mountPath: /scratch, name: scratch}]}
  - {name: log, image: "log:1"}
""")
    (job,) = documents("pytorchjob", "--patch", str(tmp_path / "patch.yaml"))
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert "runAsUser" not in pod["securityContext"]
    assert pod["terminationGracePeriodSeconds"] == 60
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    assert pod["volumes"] == [memory, {"name": "scratch", "emptyDir": {}}]
    first, second = pod["containers"]
    assert (first["name"], first["image"], first["command"][0]) == ("pytorch", "mine:2", "sh")
    assert [mount["mountPath"] for mount in first["volumeMounts"]] == ["/dev/shm", "/scratch"]
    assert second == {"name": "log", "image": "log:1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spec: [", "cannot be read: "),
        (None, "cannot be read: "),
        *((text, "not a pod template") for text in ("", "a", "spec: 1", "kind: Pod", "metadata: {name: other}")),
        *((f"spec: {{containers: {text}}}", "not a pod template") for text in ("[]", "null", "[1]", "{a: b}")),
    ],
)
def test_no_patch(refused: Callable[..., list[str]], tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "patch.yaml"
    if text is not None:
        file.write_text(text)
    (line,) = refused("mpijob", "--patch", str(file))
    assert line.startswith(f"cpudist: --patch '{file}': {reason}")


@pytest.mark.parametrize("name", ["xeon-2s-8c2t.sysfs.tar.xz", "xeon-8480-2s-snc4.lscpu", "epyc-7t83-2s-nps2.lscpu"])
def test_threads_on_nodes_with_two_hardware_threads_a_core(documents: Documents, name: str) -> None:
    """16 CPUs, whole cores of the node as the kubelet's static CPU manager gives them, are 8 cores: 4 for a rank."""
    (job,) = documents("pytorchjob", "--ranks-per-pod", "2", "--cpus", "16")
    (template,) = templates(job)
    variables = {**env(template["spec"]["containers"][0]), "RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    # torchrun sets the number that nobody has set.
    variables.setdefault("OMP_NUM_THREADS", "1")
    threads = threads_of_user(Torchrun(variables), variables, Starter(frozenset(), {}))
    assert threads is None
    topology = machine_from(FOLDER / name).topology
    cpus = frozenset(cpu for core in topology.cores[:8] for cpu in core.cpus)
    assert len(cpus) == 16
    for limits, expected in ((Limits(cpus), 4), (Limits(None, quota=16), 7)):
        mask = limits.cpus or frozenset(topology.cpus)
        shares = [own_share(Machine(topology, limits), mask, rank, 2, PlanOptions()) for rank in (0, 1)]
        assert [share.plan.omp_threads for share in shares] == [expected] * 2
