"""Rendered jobs without Kubernetes: the pods' commands, variables and limits on the hosts of a bed.

What the operators add to a pod is added here: PyTorchJob's variables (training-operator 1.9), TrainJob's (trainer), and
MPIJob's hostfile, keys and variables.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, missing
from control_group import ControlGroup, control_group
from render.example import env

from cpudist.backends.ccl.compilation import cache_folder
from cpudist.huggingface.checkpoint_files import checkpoints
from cpudist.waiting import poll

pytestmark = [pytest.mark.job, pytest.mark.long]

Documents = Callable[..., list[dict[str, Any]]]

REPOSITORY = Path(__file__).parents[2]
CACHE = {"CPUDIST_CACHE": str(cache_folder())}
SMALL = ("--ranks-per-pod", "2", "--cpus", "2", "--memory", "3Gi", "--name", "digits", "--pvc", "data")
LEARN = ("images", "--dataset_name", "digits", "--output_dir", "out", "--do_train")
QUIET = ("--logging_steps", "1", "--save_strategy", "no", "--disable_tqdm", "true")
ENDLESS = (*LEARN, *QUIET, "--max_steps", "1000000")
# Two pods of two CPUs do not fit a machine of two: a core has ranks of both, and oneCCL starts over libfabric in one
# second or in a minute, by chance (docs/kubernetes.md).
OVER_TCP, OVER_MPI = ("--", "--backend", "gloo"), ("--", "--backend", "ccl")


# What mpi-operator sets in the launcher's pod: {0} is the hostfile, {1} the ranks of a worker.
OF_THE_OPERATOR = {
    "intel": {
        "I_MPI_HYDRA_HOST_FILE": "{0}",
        "I_MPI_PERHOST": "{1}",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
    "mpich": {"HYDRA_HOST_FILE": "{0}", "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10"},
    "openmpi": {
        "OMPI_MCA_orte_default_hostfile": "{0}",
        "OMPI_MCA_orte_set_default_slots": "{1}",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    },
}


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The volume that all pods mount."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def groups() -> Iterator[list[ControlGroup]]:
    """Control groups for three pods; removed after the bed, which kills their processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(control_group()) for _ in range(3)]


@pytest.fixture
def bed(groups: list[ControlGroup], tmp_path: Path) -> Iterator[Bed]:
    (tmp_path / "bed").mkdir()
    with Bed(tmp_path / "bed", hosts=len(groups)) as bed:
        yield bed


class Pods:
    """Starts pods, each on a host of the bed."""

    def __init__(self, bed: Bed, groups: list[ControlGroup], folder: Path, paths: dict[str, str] | None = None) -> None:
        self._bed = bed
        self._groups = groups
        self._folder = folder
        self._paths = paths or {}  # of the container -> of this machine

    def start(self, index: int, spec: dict[str, Any], more: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start the pod's one container on host `index`, with the variables `more` that the operator adds."""
        (container,) = spec["containers"]
        limits = container["resources"]["limits"]
        group, host = self._groups[index], f"h{index}"
        cpus, memory = int(limits["cpu"]), int(limits["memory"].removesuffix("Gi")) << 30
        shares = 1024 * cpus  # what the kubelet makes of a request; the limit is a quota
        group.limit("cpu", cpu__shares=str(shares), cpu__weight=str(1 + (shares - 2) * 9999 // 262142))
        group.limit("cpu", cpu__max=f"{cpus}00000 100000", cpu__cfs_quota_us=f"{cpus}00000")
        group.limit("memory", memory__max=str(memory), memory__limit_in_bytes=str(memory))
        words = [self._here(word) for word in (*container["command"], *container["args"])]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        if container["name"] != "worker":  # sshd, which is root's here, needs capabilities to become root
            # ssh too: it sets the groups of KnownHostsCommand, where its user is root.
            kept = ",+setgid" if container["name"] == "launcher" else ""
            words = ["setpriv", "--no-new-privs", f"--bounding-set=-all{kept}", "--inh-caps=-all", *words]
        for size in (volume.get("emptyDir", {}).get("sizeLimit") for volume in spec["volumes"]):
            if size:
                remount = f"mount -o remount,size={size.removesuffix('i')} /dev/shm"
                words = ["sh", "-c", f'{remount} && exec "$@"', "sh", *words]
        variables = {**CACHE, **(env(container, f"pod-{index}") if "env" in container else {}), **more}
        output = self.output(index)
        return self._bed.start(host, group.inside(words), output, variables, cwd=container["workingDir"])

    def output(self, index: int) -> Path:
        """Return the file of a pod's output."""
        return self._folder / f"pod-{index}.log"

    def said(self, words: str) -> bool:
        """Wait up to two minutes for words in the output of any pod; return whether they came."""
        return poll(lambda: words in self.text(), 120)

    def text(self) -> str:
        """Return the output of all pods."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("pod-*.log")))

    def _here(self, word: str) -> str:
        for inside, outside in self._paths.items():
            word = word.replace(inside, outside)
        return word


def record(data: Path) -> dict[str, Any]:
    return json.loads((data / "out" / "cpudist.json").read_text())


def terminate(bed: Bed, host: str, words: str) -> None:
    """Send SIGTERM to the first process of a pod, as the kubelet does."""
    (first,) = (pid for pid, line in bed.processes(host).items() if words in line)
    os.kill(first, signal.SIGTERM)


def operators_variables(job: dict[str, Any]) -> dict[str, str]:
    """Return the variables that training-operator 1.9 sets in all pods of a job without a Master."""
    policy, worker = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    (port,) = worker["template"]["spec"]["containers"][0]["ports"]
    assert port["name"] == "pytorchjob-port"
    return {
        "PYTHONUNBUFFERED": "0",
        "PET_RDZV_ENDPOINT": f"{job['metadata']['name']}-worker-0:{port['containerPort']}",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy['minReplicas']}:{policy['maxReplicas']}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }


def test_a_pytorchjob_is_preempted_and_goes_on(
    bed: Bed, groups: list[ControlGroup], documents: Documents, tmp_path: Path, data: Path
) -> None:
    """2 pods x 2 ranks: one pod gets SIGTERM, all ranks save and end. The next job resumes from there and completes."""
    bed.add_names({"digits-worker-0": "h0"})

    def start(*target: str) -> tuple[Pods, list[subprocess.Popen[bytes]]]:
        (job,) = documents("pytorchjob", *SMALL, "--mount-path", str(data), target=target)
        pods = Pods(bed, groups, tmp_path)
        spec = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
        return pods, [pods.start(index, spec, operators_variables(job)) for index in (0, 1)]

    pods, processes = start(*OVER_TCP, *ENDLESS)
    assert pods.said("'loss'"), pods.text()
    terminate(bed, "h1", "/torchrun ")
    for process in processes:
        assert process.wait(90) != 0, pods.text()
    ((step, _),) = checkpoints(data / "out").items()
    assert f"SIGTERM: saved out/checkpoint-{step}" in pods.text()
    found = record(data)
    assert (found["world_size"], found["hosts"], found["launcher"]) == (4, ["h0", "h1"], "torchrun")
    assert (found["exit"], found["steps"]) == ("interrupted", step)

    pods, processes = start(*OVER_TCP, *LEARN, *QUIET, "--max_steps", str(step + 3), "--resume_from_checkpoint", "last")
    for process in processes:
        assert process.wait(120) == 0, pods.text()
    found = record(data)
    assert (found["exit"], found["steps"], found["world_size"]) == ("completed", 3, 4)
    assert all(rank["omp_threads"] == 1 for rank in found["pinning"])


@pytest.mark.parametrize("lost", [1, 0])
def test_an_elastic_pytorchjob_loses_a_pod(
    bed: Bed, groups: list[ControlGroup], documents: Documents, tmp_path: Path, data: Path, lost: int
) -> None:
    """A node loses its power, and the other pods go on from the last checkpoint.

    Without worker 0, where the agents of torchrun meet, they end. Then Kubernetes starts their containers again, and a
    new worker 0.
    """
    words = (*SMALL[2:], "--min-replicas", "1", "--max-restarts", "3")
    saving = ("--save_steps", "20", "--save_total_limit", "2", "--disable_tqdm", "true", "--max_steps", "1000000")
    target = (*OVER_TCP, *LEARN, *saving, "--logging_steps", "1")
    (job,) = documents("pytorchjob", *words, "--mount-path", str(data), target=target)
    worker, variables = job["spec"]["pytorchReplicaSpecs"]["Worker"], operators_variables(job)
    spec, left = worker["template"]["spec"], 1 - lost
    pods = Pods(bed, groups, tmp_path)
    running = {1: pods.start(1, spec, variables)}
    assert poll(lambda: any("getent" in line for line in bed.processes("h1").values()), 30)
    bed.add_names({"digits-worker-0": "h0"})
    running[0] = pods.start(0, spec, variables)
    assert poll(lambda: bool(checkpoints(data / "out")), 120), pods.text()
    bed.kill(f"h{lost}")
    hosts = [f"h{left}"]
    if lost == 0:
        # The ranks end after 25 s of silence, and end torchrun 10 s later. By itself it had not ended after 230 s.
        assert running[left].wait(100) != 0, pods.text()
        assert poll(lambda: not bed.processes(f"h{left}"), 30), bed.processes(f"h{left}")
        bed.add_names({"digits-worker-0": "h2"})
        running = {index: pods.start(index, spec, variables) for index in (1, 2)}
        hosts = ["h1", "h2"]
    assert pods.said(": going on from out/checkpoint-"), pods.text()
    losses = pods.text().count("'loss'")
    assert poll(lambda: pods.text().count("'loss'") > losses, 60), pods.text()
    terminate(bed, f"h{left}", "/torchrun ")
    assert running[left].wait(90) != 0, pods.text()
    found = record(data)
    assert (found["world_size"], found["hosts"], found["exit"]) == (len(hosts), hosts, "interrupted")


@pytest.mark.parametrize(("ranks", "backend"), [("2", "gloo"), ("1", "ccl")])
def test_a_trainjob_trains(
    bed: Bed, groups: list[ControlGroup], documents: Documents, tmp_path: Path, data: Path, ranks: str, backend: str
) -> None:
    """2 pods. With a CPU for each rank, as on a cluster, they use oneCCL over libfabric too."""
    short = ("--", "--backend", backend, *LEARN, *QUIET, "--max_steps", "3")
    words = ("--ranks-per-pod", ranks, "--cpus", ranks, *SMALL[4:], "--mount-path", str(data))
    runtime, job = documents("trainjob", *words, target=short)
    (step,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec, trainer = step["template"]["spec"]["template"]["spec"], job["spec"]["trainer"]
    # The controller merges the two documents.
    taken = {"image", "command", "args", "env"}
    spec["containers"][0] |= {name: trainer[name] for name in taken} | {"resources": trainer["resourcesPerNode"]}
    master = f"{job['metadata']['name']}-node-0-0.{job['metadata']['name']}"
    bed.add_names({master: "h0"})
    variables = {"PET_MASTER_ADDR": master, "PET_MASTER_PORT": "29400", "PET_NNODES": str(trainer["numNodes"])}
    variables["PET_NPROC_PER_NODE"] = str(trainer["numProcPerNode"])
    pods = Pods(bed, groups, tmp_path)
    for process in [pods.start(node, spec, {**variables, "PET_NODE_RANK": str(node)}) for node in (0, 1)]:
        assert process.wait(150) == 0, pods.text()
    found = record(data)
    assert (found["exit"], found["steps"], found["world_size"]) == ("completed", 3, 2 * int(ranks))
    assert (found["hosts"], found["backend"]) == (["h0", "h1"], backend)


@pytest.mark.parametrize(("mpi", "name"), [("intel", "intel-mpi"), ("openmpi", "open-mpi")])
def test_an_mpijob_waits_for_its_workers_trains_and_is_preempted(
    bed: Bed, groups: list[ControlGroup], documents: Documents, tmp_path: Path, data: Path, mpi: str, name: str
) -> None:
    """The launcher starts first; names and sshd come later. Then a worker gets SIGTERM, and all ranks save and end."""
    backend = OVER_TCP if mpi == "openmpi" else OVER_MPI
    (job,) = documents("mpijob", *SMALL, "--mpi", mpi, "--mount-path", str(data), target=(*backend, *ENDLESS))
    paths = {"/home/cpudist": str(tmp_path / "home"), "/etc/mpi": str(tmp_path)}
    _mount_keys(tmp_path / "bed" / "ssh", paths)
    workers = {f"digits-worker-{index}.digits.default.svc": f"h{1 + index}" for index in range(2)}
    slots = job["spec"]["slotsPerWorker"]
    form = "{} slots={}\n" if mpi == "openmpi" else "{}:{}\n"
    (tmp_path / "hostfile").write_text("".join(form.format(worker, slots) for worker in workers))
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][name]["template"]["spec"] for name in ("Launcher", "Worker"))
    extra = {variable: value.format(tmp_path / "hostfile", slots) for variable, value in OF_THE_OPERATOR[mpi].items()}

    pods = Pods(bed, groups, tmp_path, paths)
    launching = pods.start(0, launcher, {"K_MPI_JOB_ROLE": "launcher", **extra})
    assert poll(lambda: any("launch --hostfile" in line for line in bed.processes("h0").values()), 30)
    bed.add_names(workers)
    for index in (1, 2):
        pods.start(index, worker, {"K_MPI_JOB_ROLE": "worker"})
    assert pods.said("'loss'"), pods.text()
    terminate(bed, "h2", "# At the end of the pod")
    assert launching.wait(90) != 0, pods.text()
    ((step, _),) = checkpoints(data / "out").items()
    assert f"SIGTERM: saved out/checkpoint-{step}" in pods.text()
    found = record(data)
    assert (found["launcher"], found["world_size"], found["hosts"]) == (name, 4, ["h1", "h2"])
    assert (found["exit"], found["steps"]) == ("interrupted", step)
    assert poll(lambda: not bed.processes("h2"), 30), bed.processes("h2")


def _mount_keys(etc_ssh: Path, paths: dict[str, str]) -> None:
    """Write the files that the operator and the image put into the pods, at paths of this machine."""
    home = Path(paths["/home/cpudist"])
    keys = home / ".ssh"
    keys.mkdir(parents=True)
    subprocess.run(shlex.split(f"ssh-keygen -q -t ecdsa -b 521 -N '' -f {keys}/id_rsa"), check=True, timeout=60)
    (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
    for name, file in (("ssh_config", etc_ssh / "ssh_config"), ("sshd_config", home / "sshd_config")):
        file.write_text((REPOSITORY / "container" / name).read_text().replace("/home/cpudist", str(home)))
