"""Which processes a launcher leaves, by the parents of a rank, and that a process of another start is never hit."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cpudist.processes.procfs import Process, read
from cpudist.supervision import abort
from cpudist.supervision.abort import _left_by_launcher
from cpudist.waiting import poll

RANK = 100


def left(*chain: str, beside: dict[str, str] | None = None) -> list[str]:
    """What is left where `chain` names the rank's parents, lowest first; `beside` maps a child's name to its parent."""
    names = ["python", *chain, "systemd"]
    table = [Process(RANK - i, RANK - i - 1, 7, name) for i, name in enumerate(names)]
    for pid, (name, parent) in enumerate((beside or {}).items(), 200):
        table.append(Process(pid, next(p.pid for p in table if p.name == parent), 7, name))
    return [process.name for process in _left_by_launcher({process.pid: process for process in table}, RANK)]


def test_on_the_host_where_the_command_was_typed() -> None:
    beside = {"ssh": "mpiexec.hydra", "other rank": "hydra_pmi_proxy", "its worker": "other rank", "vim": "bash"}
    found = left("hydra_pmi_proxy", "mpiexec.hydra", "mpirun", "bash", beside=beside)
    assert set(found) == {"hydra_pmi_proxy", "mpiexec.hydra", "mpirun", "ssh", "other rank", "its worker"}
    assert found.index("its worker") < found.index("other rank") < found.index("hydra_pmi_proxy")


@pytest.mark.parametrize(
    ("chain", "beside", "expected"),
    [
        # On another host the sshd of this connection is left too: it would wait for its client.
        ("hydra_pmi_proxy hydra_bstrap_proxy sshd sshd", None, "hydra_pmi_proxy hydra_bstrap_proxy sshd"),
        ("orted sshd sshd", {"another": "orted"}, "another orted sshd"),
        ("prted sshd sshd", {"another": "prted"}, "another prted sshd"),
        ("orted sh sshd sshd", None, "orted sh sshd"),
        ("orted sh systemd", None, "orted"),
        # The user types over a connection, too: ssh's ControlMaster carries several sessions over one.
        ("orted sshd systemd", {"bash of another session": "sshd"}, "orted"),
        ("orted sshd-session systemd", {"bash of another session": "sshd-session"}, "orted"),
        ("hydra_pmi_proxy mpiexec.hydra mpirun sshd sshd", None, "hydra_pmi_proxy mpiexec.hydra mpirun"),
        ("numactl sh orterun bash", None, "numactl sh orterun"),
        # Without an MPI's launcher there is nothing to end.
        ("bash", None, ""),
        ("torchrun bash sshd", None, ""),
        ("slurmstepd", None, ""),
    ],
)
def test_what_a_launcher_leaves(chain: str, beside: dict[str, str] | None, expected: str) -> None:
    assert left(*chain.split(), beside=beside) == expected.split()


def test_an_agent_that_waits_and_its_ranks() -> None:
    table = [Process(RANK, 50, 7, "python"), Process(101, 50, 7, "another rank"), Process(50, 1, 7, "torchrun")]
    found = _left_by_launcher({process.pid: process for process in table}, RANK, 50)
    assert [process.name for process in found] == ["another rank", "torchrun"]


@pytest.mark.job
def test_only_what_was_meant_and_does_not_end_by_itself_is_killed() -> None:
    """One process ignores a polite signal, one ends by itself, and one has the id of an older one."""
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    with (
        subprocess.Popen(stubborn, stdout=subprocess.PIPE) as victim,
        subprocess.Popen(["sleep", "1"]) as ends,
        subprocess.Popen(["sleep", "300"]) as other,
    ):
        victim.stdout.readline()
        targets = [f"{one.pid}:{read(one.pid).start - (one is other)}" for one in (ends, victim, other)]
        for seconds in ("3", "600"):  # nothing is left to wait for the second time
            command = ["/bin/sh", "-c", abort._SCRIPT, "sh", seconds, *targets]
            done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=False)
            assert done.stderr == b""
            assert (victim.wait(10), ends.wait(10), other.poll()) == (-9, 0, None)
        other.kill()


# A rank that aborts below a launcher that does not end by itself, beside another rank. MPI_Abort ends it.
RANK_ABORTS = """
import os
from cpudist.rendezvous import mpi
from cpudist.supervision import abort
mpi.initialise(60, None)
abort.LAUNCHER_SECONDS = 1
print("the reason", flush=True)
os._exit = print
abort.abort(3)
"""


@pytest.mark.job
def test_a_rank_that_aborts_ends_its_launcher_and_the_other_ranks(tmp_path: Path) -> None:
    launcher, rank = tmp_path / "mpiexec.hydra", shlex.join([sys.executable, "-c", RANK_ABORTS])
    launcher.write_text(f"sleep 300 & echo $!; {rank}; echo $?; exec sleep 300")
    with subprocess.Popen(["sh", str(launcher)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        other = int(job.stdout.readline())
        assert job.communicate(timeout=60) == ("the reason\n3\n", "")
        assert job.returncode == -15
        assert poll(lambda: read(other) is None, 10)
