"""Which processes a launcher leaves, by the parents of a rank, and that a process of another start is never hit."""

from __future__ import annotations

import subprocess

import pytest

from cpudist.job import abort
from cpudist.job.abort import _left_by_launcher
from cpudist.processes import Process, read

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


@pytest.mark.parametrize("daemons", [("hydra_pmi_proxy", "hydra_bstrap_proxy"), ("orted",), ("prted",)])
def test_on_another_host(daemons: tuple[str, ...]) -> None:
    """The sshd of this connection is left too: it would wait for its client."""
    assert left(*daemons, "sshd", "sshd", beside={"another rank": daemons[0]}) == ["another rank", *daemons, "sshd"]


@pytest.mark.parametrize("sshd", ["sshd", "sshd-session"])
def test_a_connection_that_the_user_types_over_stays(sshd: str) -> None:
    """ssh's ControlMaster carries several sessions over one."""
    assert left("orted", sshd, "systemd", beside={"bash of another session": sshd}) == ["orted"]


def test_a_wrapper_between_launcher_and_rank() -> None:
    assert left("numactl", "sh", "orterun", "bash") == ["numactl", "sh", "orterun"]


@pytest.mark.parametrize("chain", [("bash",), ("torchrun", "bash", "sshd"), ("slurmstepd",), ("bash", "sshd", "sshd")])
def test_without_an_mpi_launcher_there_is_nothing_to_end(chain: tuple[str, ...]) -> None:
    assert left(*chain) == []


def test_an_agent_that_waits_and_its_ranks() -> None:
    table = [Process(RANK, 50, 7, "python"), Process(101, 50, 7, "another rank"), Process(50, 1, 7, "torchrun")]
    found = _left_by_launcher({process.pid: process for process in table}, RANK, 50)
    assert [process.name for process in found] == ["another rank", "torchrun"]


def test_a_command_typed_over_ssh_leaves_its_session_alone() -> None:
    assert left("hydra_pmi_proxy", "mpiexec.hydra", "mpirun", "sshd", "sshd") == [
        "hydra_pmi_proxy",
        "mpiexec.hydra",
        "mpirun",
    ]


def start(victim: subprocess.Popen[bytes]) -> int:
    process = read(victim.pid)
    assert process is not None
    return process.start


def end(victim: subprocess.Popen[bytes], start: int) -> None:
    done = subprocess.run(["/bin/sh", "-c", abort._SCRIPT, "sh", "0", f"{victim.pid}:{start}"], timeout=30, check=False)
    assert done.returncode in (0, 1)


@pytest.mark.job
def test_a_process_that_ignores_a_polite_signal_is_ended() -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    with subprocess.Popen(stubborn, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
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
