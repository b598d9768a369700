"""The command lines for each MPI, how launchers are found, and what is read from their last words."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from cpudist.errors import UserError
from cpudist.launch.hostfile import Host
from cpudist.launch.launchers import MPIS, Start, find_launcher
from cpudist.launch.launchers.base import Death, describe
from cpudist.launch.launchers.intel import Intel
from cpudist.launch.launchers.mpich import Mpich
from cpudist.launch.launchers.openmpi import OpenMpi

HOSTS = (Host("h0", 2), Host("h1", 1))
TRAIN = ("/env/bin/cpudist-train", "--backend", "ccl", "train.py")
NAMES = ("CCL_LOG_LEVEL", "HOME", "PATH", "SECRET")


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def command(kind: type, version: str = "", **start: object) -> str:
    words = kind(Path("/mpi/bin/mpirun"), version).command(Start(HOSTS, program=TRAIN, variables=NAMES, **start))
    return " ".join(words)


def test_command_lines_with_a_hostfile() -> None:
    train = " ".join(TRAIN)
    options = {"hostfile": "hosts", "interface": "eth1", "all_output": True}
    assert command(Intel, **options) == (
        "/mpi/bin/mpirun -launcher ssh -genv I_MPI_PIN off -machinefile hosts -iface eth1 -prepend-rank -n 3 " + train
    )
    assert command(Mpich, **options) == (
        "/mpi/bin/mpirun -launcher ssh -bind-to none -f hosts -iface eth1 -prepend-rank -n 3 " + train
    )
    assert command(OpenMpi, "mpirun (Open MPI) 4.1.4", **options) == (
        "/mpi/bin/mpirun --bind-to none --hostfile hosts --mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1 "
        "--tag-output -x CCL_LOG_LEVEL -x PATH -n 3 " + train
    )
    assert command(OpenMpi, "mpirun (Open MPI) 5.0.8", **options) == (
        "/mpi/bin/mpirun --bind-to none --hostfile hosts --prtemca prte_if_include eth1 "
        "--mca btl_tcp_if_include eth1 --output tag -x CCL_LOG_LEVEL -x PATH -n 3 " + train
    )


def test_command_lines_on_this_host() -> None:
    train = " ".join(TRAIN)
    assert command(Intel, hostfile=None) == "/mpi/bin/mpirun -launcher fork -genv I_MPI_PIN off -n 3 " + train
    assert command(Mpich, hostfile=None) == "/mpi/bin/mpirun -launcher fork -bind-to none -ppn 3 -n 3 " + train
    assert command(OpenMpi, hostfile=None) == (
        "/mpi/bin/mpirun --bind-to none --host localhost:3 -x CCL_LOG_LEVEL -x PATH -n 3 " + train
    )


def test_pinning_that_the_user_has_chosen_stays() -> None:
    start = Start(HOSTS, None, TRAIN, ("I_MPI_PIN_DOMAIN",))
    assert "I_MPI_PIN" not in Intel(Path("mpirun"), "").command(start)


@pytest.mark.parametrize("mpi", MPIS)
def test_the_real_ones_are_found(mpi: str) -> None:
    name = {"mpich": "mpirun.mpich", "openmpi": "mpirun.openmpi"}.get(mpi, "mpirun")
    if shutil.which(name) is None and not (Path(sys.executable).with_name("mpirun")).exists():
        pytest.skip(f"{name} is not installed")
    assert isinstance(find_launcher(mpi), MPIS[mpi])


def test_none_that_fits(tmp_path: Path) -> None:
    for name, says in (("mpirun", "HYDRA build details:"), ("mpiexec", "a queue of its own, 1.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert isinstance(find_launcher("auto", path, own=tmp_path / "none"), Mpich)
    with pytest.raises(UserError, match=r"--mpi openmpi was found \(.*mpirun is mpich; .*mpiexec is of an unknown MPI"):
        find_launcher("openmpi", path, own=tmp_path / "none")
    with pytest.raises(UserError, match="there is none at all"):
        find_launcher("auto", {"PATH": os.devnull}, own=tmp_path / "none")


# As the launchers wrote it, when rank 1 of 2 was killed.
INTEL = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 26955 RUNNING AT h0
=   KILLED BY SIGNAL: 9 (Killed)
===================================================================================

===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 26956 RUNNING AT h1
=   KILLED BY SIGNAL: 11 (Segmentation fault)
===================================================================================
"""
MPICH = """
===================================================================================
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 26962 RUNNING AT h1
=   EXIT CODE: 11
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
===================================================================================
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
"""
OPEN_MPI = """
--------------------------------------------------------------------------
mpirun.openmpi noticed that process rank 1 with PID 0 on node h1 exited on signal 11 (Segmentation fault).
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(("kind", "said"), [(Intel, INTEL), (Mpich, MPICH), (OpenMpi, OPEN_MPI)])
def test_who_was_killed(kind: type, said: str) -> None:
    deaths = kind(Path("mpirun"), "").deaths(said)
    assert describe(deaths, {"h0": 0, "h1": 1}) == "rank 1 on h1 was killed by SIGSEGV"
    unseen = "a rank" if kind is Mpich else "rank 1"
    assert describe(deaths, {}) == f"{unseen} on h1 was killed by SIGSEGV"
    assert kind(Path("mpirun"), "").deaths("rank 1 on h1 failed: ValueError: signal 9; ending the job") == []


def test_a_kill_that_may_be_the_launchers_own() -> None:
    here, there = Death(9, 0, "h0"), Death(9, 1, "h1")
    hint = "(dmesg there tells whether memory ran out)"
    assert describe([here, Death(9, 1, "h0")], {"h0": 1}) == f"rank 1 on h0 was killed by SIGKILL {hint}"
    assert describe([here, there], {"h0": 0, "h1": 1}) == f"a rank was killed by SIGKILL {hint}"
    assert describe([], {"h0": 1}) == "", "it ended by itself and has said why"
