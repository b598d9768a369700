"""Start a Slurm cluster of this machine alone for a test: munged, slurmctld and slurmd of Debian's slurm-wlm."""

import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cpudist.topology.identity import free_port
from cpudist.waiting import poll

_SECONDS = 60.0  # for Slurm to start or end, on a machine that is busy
_PATH = f"/usr/sbin:/usr/bin:{os.environ.get('PATH', os.defpath)}"

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={control}
SlurmdPort={daemon}
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
FirstJobId={first}
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 {processor} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2
PartitionName=all Nodes=ALL Default=YES State=UP GraceTime=60
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


@contextmanager
def slurm_node(folder: Path, processor: str = "") -> Iterator[dict[str, str]]:
    """Start the daemons in an empty folder, yield the variables with which Slurm's commands find them, and stop them.

    Skips the test where Slurm is not installed or this user is not root; fails it where Slurm does not start.
    `processor` describes the node in terms of slurm.conf(5); by default it has this machine's CPUs.
    """
    for program in ("munged", "slurmctld", "slurmd", "srun"):
        if shutil.which(program, path=_PATH) is None:
            pytest.skip(f"{program} (Debian: slurm-wlm, munge) is not installed")
    if os.geteuid() != 0:
        pytest.skip("slurmd has to be started as root")
    with ExitStack() as daemons:
        variables = _configure(folder, processor)
        for command in (_munged(folder), ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            daemons.enter_context(_running(folder, command, variables))
        _wait_until_idle(variables, folder)
        yield variables


def _configure(folder: Path, processor: str) -> dict[str, str]:
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    text = _CONFIGURATION.format(
        host=socket.gethostname(),
        folder=folder,
        control=free_port(),
        daemon=free_port(),
        processor=processor or f"CPUs={os.cpu_count()}",
        # A job's port follows from its number, and another test run may have a cluster here at the same time.
        first=random.randrange(1, 1_000_000),
    )
    if processor:
        text += "SlurmdParameters=config_overrides\n"
    (folder / "slurm.conf").write_text(text)
    return {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}


def _munged(folder: Path) -> list[str]:
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge/{name}" for option, name in names.items()]
    return ["munged", "--foreground", "--force", *options]


@contextmanager
def _running(folder: Path, command: list[str], variables: dict[str, str]) -> Iterator[None]:
    with open(folder / f"{command[0]}.out", "wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _wait_until_idle(variables: dict[str, str], folder: Path) -> None:
    def idle() -> bool:
        ask = ["sinfo", "-h", "-o", "%T"]
        return subprocess.run(ask, capture_output=True, env=variables, timeout=_SECONDS).stdout.strip() == b"idle"

    if not poll(idle, _SECONDS):
        logs = "".join(path.read_text(errors="replace")[-500:] for path in sorted(folder.glob("slurm*.out")))
        pytest.fail(f"Slurm does not start within {_SECONDS:g} s: {logs}")
