"""Which processes a launcher leaves, by the parents of a rank, and that a process of another start is never hit."""

from __future__ import annotations

import subprocess

import pytest

from cpudist.processes import Process, read
from cpudist.supervision import abort
from cpudist.supervision.abort import _left_by_launcher

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
        # The user types over a connection, too: ssh's ControlMaster carries several sessions over one.
        ("orted sshd systemd", {"bash of another session": "sshd"}, "orted"),
        ("orted sshd-session systemd", {"bash of another session": "sshd-session"}, "orted"),
        ("hydra_pmi_proxy mpiexec.hydra mpirun sshd sshd", None, "hydra_pmi_proxy mpiexec.hydra mpirun"),
        ("numactl sh orterun bash", None, "numactl sh orterun"),
        # Without an MPI's launcher there is nothing to end.
        ("bash", None, ""),
        ("torchrun bash sshd", None, ""),
        ("slurmstepd", None, ""),
        ("bash sshd sshd", None, ""),
    ],
)
def test_what_a_launcher_leaves(chain: str, beside: dict[str, str] | None, expected: str) -> None:
    assert left(*chain.split(), beside=beside) == expected.split()


def test_an_agent_that_waits_and_its_ranks() -> None:
    table = [Process(RANK, 50, 7, "python"), Process(101, 50, 7, "another rank"), Process(50, 1, 7, "torchrun")]
    found = _left_by_launcher({process.pid: process for process in table}, RANK, 50)
    assert [process.name for process in found] == ["another rank", "torchrun"]


def start(victim: subprocess.Popen[bytes]) -> int:
    return read(victim.pid).start


def end(victim: subprocess.Popen[bytes], start: int) -> None:
    done = subprocess.run(["/bin/sh", "-c", abort._SCRIPT, "sh", "0", f"{victim.pid}:{start}"], timeout=30, check=False)
    assert done.returncode in (0, 1)


@pytest.mark.job
def test_a_process_that_ignores_a_polite_signal_is_ended() -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    with subprocess.Popen(stubborn, stdout=subprocess.PIPE) as victim:
        victim.stdout.readline()
        end(victim, start(victim))
        assert victim.wait(10) == -9


@pytest.mark.job
def test_a_new_process_with_an_old_id_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "300"]) as victim:
        end(victim, start(victim) - 1)
        assert victim.poll() is None
        victim.kill()


@pytest.mark.job
def test_it_waits_for_those_that_end_by_themselves() -> None:
    """It prints nothing, and returns as soon as they have ended."""
    with subprocess.Popen(["sleep", "1"]) as victim:
        target = f"{victim.pid}:{start(victim)}"
        ending = subprocess.Popen(["/bin/sh", "-c", abort._SCRIPT, "sh", "600", target], stderr=subprocess.PIPE)
        assert victim.wait(20) == 0
        _, errors = ending.communicate(timeout=60)
        assert errors == b""
