"""examples/kubernetes without Kubernetes: the pods' commands, variables and limits on the hosts of a bed.

What the operators add to a pod is added here: PyTorchJob's variables (training-operator 1.9), TrainJob's (trainer), and
MPIJob's hostfile, keys and variables.
"""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, missing
from control_group import ControlGroup, control_group
from manifests import kustomized, pods

from cpudist.compiler import build_folder
from cpudist.huggingface.restart_point import checkpoints
from cpudist.waiting import poll

pytestmark = [pytest.mark.job, pytest.mark.long]

REPOSITORY = Path(__file__).parents[2]
SMALL = {"name": "digits", "cpus": "2", "memory": "3Gi"}
QUIET = ("--logging_steps=1", "--disable_tqdm=true")
ENDLESS = (*QUIET, "--max_steps=1000000")

# What mpi-operator sets in the launcher's pod: {0} is the hostfile, {1} the ranks of a worker.
OF_THE_OPERATOR = {
    "Intel": {
        "I_MPI_HYDRA_HOST_FILE": "{0}",
        "I_MPI_PERHOST": "{1}",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "-o ConnectionAttempts=10",
    },
    "OpenMPI": {
        "OMPI_MCA_orte_default_hostfile": "{0}",
        "OMPI_MCA_orte_set_default_slots": "{1}",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    },
}


class Pods:
    """Starts pods, each on a host of the bed; the claim is the folder `data`."""

    def __init__(self, bed: Bed, groups: list[ControlGroup], folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self._bed = bed
        self._groups = groups
        self._folder = folder
        self._record = folder / "record.json"
        examples = str(REPOSITORY / "examples")
        self.paths = {"/data": str(self.data), "/opt/examples": examples}  # of the container -> of this machine

    def start(
        self, index: int, pod: dict[str, Any], operator: dict[str, str], backend: str = "", more: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start the one container of a pod's template on host `index`, with the variables that the operator adds.

        A `backend` is for pods with cpudist-train's options; `more` are options of the script.
        """
        spec = pod["spec"]
        (container,) = spec["containers"]
        limits = container["resources"]["limits"]
        group, host = self._groups[index], f"h{index}"
        cpus, memory = int(limits["cpu"]), int(limits["memory"].removesuffix("Gi")) << 30
        shares = 1024 * cpus  # what the kubelet makes of a request; the limit is a quota
        group.limit("cpu", cpu__shares=str(shares), cpu__weight=str(1 + (shares - 2) * 9999 // 262142))
        group.limit("cpu", cpu__max=f"{cpus}00000 100000", cpu__cfs_quota_us=f"{cpus}00000")
        group.limit("memory", memory__max=str(memory), memory__limit_in_bytes=str(memory))
        options = (f"--backend={backend}", f"--record={self._record}") if backend else ()
        words = [self._here(word) for word in (*container["command"], *options, *container["args"], *more)]
        if container["name"] != "worker":  # sshd, which is root's here, needs capabilities to become root
            # ssh too: it sets the groups of KnownHostsCommand, where its user is root.
            kept = ",+setgid" if container["name"] == "launcher" else ""
            words = ["setpriv", "--no-new-privs", f"--bounding-set=-all{kept}", "--inh-caps=-all", *words]
        for size in (volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"] if "emptyDir" in volume):
            words = ["sh", "-c", f'mount -o remount,size={size[:-1]} /dev/shm && exec "$@"', "sh", *words]
        # Of the variables from Secrets there are none: they are optional.
        own = {one["name"]: self._here(one["value"]) for one in container.get("env", []) if "value" in one}
        fields = {one["name"]: f"pod-{index}" for one in container.get("env", []) if "fieldRef" in str(one)}
        variables = {"CPUDIST_CACHE": str(build_folder()), **own, **fields, **operator}
        folder = self._here(container["workingDir"])
        return self._bed.start(host, group.inside(words), self._folder / f"pod-{index}.log", variables, cwd=folder)

    def terminate(self, index: int, words: str) -> None:
        """Send SIGTERM to the first process of a pod, as the kubelet does."""
        (first,) = (pid for pid, line in self._bed.processes(f"h{index}").items() if words in line)
        os.kill(first, signal.SIGTERM)

    def said(self, words: str) -> bool:
        """Wait up to two minutes for words in the output of any pod; return whether they came."""
        return poll(lambda: words in self.text(), 120)

    def text(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("pod-*.log")))

    def record(self) -> dict[str, Any]:
        return json.loads(self._record.read_text())

    def checkpoints(self) -> dict[int, Path]:
        return checkpoints(self.data / "out")

    def _here(self, word: str) -> str:
        for inside, outside in self.paths.items():
            word = word.replace(inside, outside)
        return word


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[tuple[Bed, Pods]]:
    """Three hosts, each with a control group for a pod; the bed ends before the groups, and kills their processes."""
    if reason := missing():
        pytest.skip(reason)
    with ExitStack() as stack:
        groups = [stack.enter_context(control_group()) for _ in range(3)]
        (tmp_path / "bed").mkdir()
        bed = stack.enter_context(Bed(tmp_path / "bed", hosts=len(groups)))
        yield bed, Pods(bed, groups, tmp_path)


def of_a_pytorchjob(job: dict[str, Any]) -> dict[str, str]:
    """Return the variables that training-operator 1.9 sets in all pods of a job without a Master."""
    policy, replicas = job["spec"]["elasticPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    return {
        "PYTHONUNBUFFERED": "0",
        "PET_RDZV_ENDPOINT": f"{job['metadata']['name']}-worker-0:23456",
        "PET_RDZV_BACKEND": policy["rdzvBackend"],
        "PET_NNODES": f"{policy.get('minReplicas', replicas)}:{policy.get('maxReplicas', replicas)}",
        "PET_MAX_RESTARTS": str(policy["maxRestarts"]),
    }


def test_a_pytorchjob_is_preempted_and_goes_on(bed: tuple[Bed, Pods], tmp_path: Path) -> None:
    """2 pods x 2 ranks: one pod gets SIGTERM, all ranks save and end. The next job resumes from there and completes."""
    hosts, running = bed
    hosts.add_names({"digits-worker-0": "h0"})
    (job,) = kustomized(tmp_path, "pytorchjob", **SMALL, ranks="2")
    (pod,) = pods([job])
    operator = of_a_pytorchjob(job) | {"CPUDIST_RUN_ID": "digits-1"}  # in the place of the pod's uid, as the page says
    # Two pods of two CPUs do not fit a machine of two: oneCCL would start over libfabric in a second or in a minute.
    processes = [running.start(index, pod, operator, "gloo", ENDLESS) for index in (0, 1)]
    assert running.said("'loss'"), running.text()
    running.terminate(1, "/torchrun ")
    for process in processes:
        assert process.wait(90) != 0, running.text()
    step = max(running.checkpoints())
    assert f"SIGTERM: saved out/checkpoint-{step}" in running.text()
    found = running.record()
    assert (found["world_size"], found["hosts"], found["launcher"]) == (4, ["h0", "h1"], "torchrun")
    assert (found["exit"], found["steps"]) == ("interrupted", step)
    assert all(rank["omp_threads"] == 1 for rank in found["pinning"])

    for process in [
        running.start(index, pod, operator, "gloo", (*QUIET, f"--max_steps={step + 3}")) for index in (0, 1)
    ]:
        assert process.wait(120) == 0, running.text()
    found = running.record()
    assert (found["exit"], found["steps"], found["world_size"]) == ("completed", 3, 4)


@pytest.mark.parametrize("lost", [1, 0])
def test_an_elastic_pytorchjob_loses_a_pod(bed: tuple[Bed, Pods], tmp_path: Path, lost: int) -> None:
    """A node loses its power, and the other pods go on from the last checkpoint.

    Without worker 0, where the agents of torchrun meet, they end. Then Kubernetes starts their containers again, and a
    new worker 0.
    """
    hosts, started = bed
    (job,) = kustomized(tmp_path, "pytorchjob", elastic=True, **SMALL)
    (pod,) = pods([job])
    saving = (*ENDLESS, "--save_strategy=steps", "--save_steps=20", "--save_total_limit=2")

    def start(index: int) -> subprocess.Popen[bytes]:
        return started.start(index, pod, of_a_pytorchjob(job), "gloo", saving)

    running, left = {1: start(1)}, 1 - lost
    assert poll(lambda: any("getent" in line for line in hosts.processes("h1").values()), 30)
    hosts.add_names({"digits-worker-0": "h0"})
    running[0] = start(0)
    assert poll(lambda: bool(started.checkpoints()), 120), started.text()
    hosts.kill(f"h{lost}")
    remaining = [f"h{left}"]
    if lost == 0:
        # The ranks end after 25 s of silence, and end torchrun 10 s later. By itself it had not ended after 230 s.
        assert running[left].wait(100) != 0, started.text()
        assert poll(lambda: not hosts.processes(f"h{left}"), 30), hosts.processes(f"h{left}")
        hosts.add_names({"digits-worker-0": "h2"})
        running = {index: start(index) for index in (1, 2)}
        remaining = ["h1", "h2"]
    assert started.said(": going on from out/checkpoint-"), started.text()
    losses = started.text().count("'loss'")
    assert poll(lambda: started.text().count("'loss'") > losses, 60), started.text()
    started.terminate(left, "/torchrun ")
    assert running[left].wait(90) != 0, started.text()
    found = started.record()
    assert (found["world_size"], found["hosts"], found["exit"]) == (len(remaining), remaining, "interrupted")


@pytest.mark.parametrize(("ranks", "backend"), [("2", "gloo"), ("1", "ccl")])
def test_a_trainjob_trains(bed: tuple[Bed, Pods], tmp_path: Path, ranks: str, backend: str) -> None:
    """2 pods. With a CPU for each rank, as on a cluster, they use oneCCL over libfabric too."""
    hosts, started = bed
    job, runtime = kustomized(tmp_path, "trainjob", **SMALL | {"cpus": ranks}, ranks=ranks)
    (pod,) = pods([runtime])
    trainer = job["spec"]["trainer"]
    pod["spec"]["containers"][0]["args"] = trainer["args"]  # the controller merges the two documents
    master = "digits-node-0-0.digits"
    hosts.add_names({master: "h0"})
    variables = {"PET_MASTER_ADDR": master, "PET_MASTER_PORT": "29400", "PET_NNODES": str(trainer["numNodes"])}
    variables["PET_NPROC_PER_NODE"] = str(trainer["numProcPerNode"])
    short = (*QUIET, "--max_steps=3")
    for process in [
        started.start(node, pod, variables | {"PET_NODE_RANK": str(node)}, backend, short) for node in (0, 1)
    ]:
        assert process.wait(150) == 0, started.text()
    found = started.record()
    assert (found["exit"], found["steps"], found["world_size"]) == ("completed", 3, 2 * int(ranks))
    assert (found["hosts"], found["backend"]) == (["h0", "h1"], backend)


@pytest.mark.parametrize(("mpi", "backend", "name"), [("Intel", "ccl", "intel-mpi"), ("OpenMPI", "gloo", "open-mpi")])
def test_an_mpijob_is_preempted(bed: tuple[Bed, Pods], tmp_path: Path, mpi: str, backend: str, name: str) -> None:
    """The launcher starts first; names and sshd come later. Then a worker gets SIGTERM, and all ranks save and end."""
    hosts, started = bed
    (job,) = kustomized(tmp_path, "mpijob", **SMALL, ranks="2")
    launcher, worker = pods([job])
    command = launcher["spec"]["containers"][0]["command"]
    command[command.index("--mpi=intel")] = f"--mpi={mpi.lower()}"
    started.paths |= {"/home/cpudist": str(tmp_path / "home"), "/etc/mpi": str(tmp_path)}
    _mount_keys(tmp_path / "bed" / "ssh", tmp_path / "home")
    workers = {f"digits-worker-{index}.digits.default.svc": f"h{1 + index}" for index in range(2)}
    form, slots = "{} slots={}\n" if mpi == "OpenMPI" else "{}:{}\n", job["spec"]["slotsPerWorker"]
    (tmp_path / "hostfile").write_text("".join(form.format(worker, slots) for worker in workers))
    extra = {variable: value.format(tmp_path / "hostfile", slots) for variable, value in OF_THE_OPERATOR[mpi].items()}

    launching = started.start(0, launcher, {"K_MPI_JOB_ROLE": "launcher", **extra}, backend, ENDLESS)
    assert poll(lambda: any("launch --hostfile" in line for line in hosts.processes("h0").values()), 30)
    hosts.add_names(workers)
    for index in (1, 2):
        started.start(index, worker, {"K_MPI_JOB_ROLE": "worker"})
    assert started.said("'loss'"), started.text()
    started.terminate(2, "# At the end of the pod")
    assert launching.wait(90) != 0, started.text()
    step = max(started.checkpoints())
    assert f"SIGTERM: saved out/checkpoint-{step}" in started.text()
    found = started.record()
    assert (found["launcher"], found["world_size"], found["hosts"]) == (name, 4, ["h1", "h2"])
    assert (found["exit"], found["steps"]) == ("interrupted", step)
    assert poll(lambda: not hosts.processes("h2"), 30), hosts.processes("h2")


def _mount_keys(etc_ssh: Path, home: Path) -> None:
    """Write the files that the operator and the image put into the pods, at paths of this machine."""
    keys = home / ".ssh"
    keys.mkdir(parents=True)
    subprocess.run(shlex.split(f"ssh-keygen -q -t ecdsa -b 521 -N '' -f {keys}/id_rsa"), check=True, timeout=60)
    (keys / "authorized_keys").write_bytes((keys / "id_rsa.pub").read_bytes())
    for name, file in (("ssh_config", etc_ssh / "ssh_config"), ("sshd_config", home / "sshd_config")):
        file.write_text((REPOSITORY / "container" / name).read_text().replace("/home/cpudist", str(home)))
