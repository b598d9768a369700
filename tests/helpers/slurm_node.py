"""Start a Slurm cluster of this machine alone for a test: munged, slurmctld and slurmd of Debian's slurm-wlm."""

import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpudist.waiting import poll

_SECONDS = 60.0  # for Slurm to start or end, on a machine that is busy
_PATH = f"/usr/sbin:/usr/bin:{os.environ.get('PATH', os.defpath)}"

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={control}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
FirstJobId={first}
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 {processor} State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2
PartitionName=all Nodes=ALL Default=YES State=UP GraceTime=60
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2
"""


@contextmanager
def slurm_node(folder: Path, processor: str = "") -> Iterator[dict[str, str]]:
    """Start the daemons in an empty folder, and stop them afterwards.

    Skips the test where Slurm is not installed or this user is not root; fails it where Slurm does not start.

    Args:
        folder: for all files of the daemons.
        processor: what Slurm takes the node for, in terms of slurm.conf(5); by default, as many CPUs as it has.

    Yields:
        The variables with which Slurm's commands find the daemons.
    """
    for program in ("munged", "slurmctld", "slurmd", "srun"):
        if shutil.which(program, path=_PATH) is None:
            pytest.skip(f"{program} (Debian: slurm-wlm, munge) is not installed")
    if os.geteuid() != 0:
        pytest.skip("slurmd has to be started as root")
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        variables = _configure(folder, processor)
        daemons.append(_munged(folder))
        for program, arguments in (("slurmctld", ["-D", "-c"]), ("slurmd", ["-D"])):
            daemons.append(_start(folder, [program, *arguments], variables))
        _wait_until_idle(variables, folder)
        yield variables
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _configure(folder: Path, processor: str) -> dict[str, str]:
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(mode=0o700)
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        ports = first.getsockname()[1], second.getsockname()[1]
    text = _CONFIGURATION.format(
        host=socket.gethostname(),
        folder=folder,
        control=ports[0],
        daemon=ports[1],
        processor=processor or f"CPUs={os.cpu_count()}",
        # A job's port follows from its number, and another test run may have a cluster here at the same time.
        first=random.randrange(1, 1_000_000),
    )
    if processor:
        text += "SlurmdParameters=config_overrides\n"
    (folder / "slurm.conf").write_text(text)
    return {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge/{name}" for option, name in names.items()]
    return _start(folder, ["munged", "--foreground", "--force", *options], {"PATH": _PATH})


def _start(folder: Path, command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with open(folder / f"{command[0]}.out", "wb") as output:
        program = shutil.which(command[0], path=_PATH)
        return subprocess.Popen([program, *command[1:]], stdout=output, stderr=output, env=variables)


def _wait_until_idle(variables: dict[str, str], folder: Path) -> None:
    def idle() -> bool:
        ask = ["sinfo", "-h", "-o", "%T"]
        asked = subprocess.run(ask, capture_output=True, text=True, env=variables, timeout=_SECONDS, check=False)
        return asked.stdout.strip() == "idle"

    if not poll(idle, _SECONDS):
        logs = "".join(path.read_text(errors="replace")[-500:] for path in sorted(folder.glob("slurm*.log")))
        pytest.fail(f"Slurm does not start within {_SECONDS:g} s: {logs}")
