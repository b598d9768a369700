"""The command line of each MPI, the search for its mpirun, and the killed ranks that its output reports."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cpudist.errors import UserError
from cpudist.hosts.hostfile import write
from cpudist.launchers import openmpi
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import Host, MpiLauncher, MpirunOptions
from cpudist.launchers.mpich import Mpich
from cpudist.launchers.mpis import MPIS, find_mpirun
from cpudist.launchers.openmpi import OpenMpi
from cpudist.launchers.pals import Pals
from cpudist.processes.lost_ranks import first_killed

TRAIN = ("/env/bin/cpudist-train", "--backend", "ccl", "train.py")
NAMES = ("CCL_LOG_LEVEL", "HOSTNAME", "MY_DATA", "PATH", "SSH_TTY")


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)


def command(mpi: type[MpiLauncher], version: str = "", **options: Any) -> str:
    ranks = MpirunOptions(3, TRAIN, variables=NAMES, **options)
    return " ".join(mpi.command(Path("/mpi/bin/mpirun"), version, ranks))


def test_command_lines_with_a_hostfile() -> None:
    train = " ".join(TRAIN)
    options = {"hostfile": "hosts", "interface": "eth1", "all_output": True}
    folder = Path(openmpi.__file__).parent
    assert command(IntelMpi, **options) == (
        "/mpi/bin/mpirun -launcher ssh -genv I_MPI_PIN off -machinefile hosts -iface eth1 -prepend-rank -n 3 " + train
    )
    assert command(Mpich, **options) == (
        "/mpi/bin/mpirun -launcher ssh -bind-to none -f hosts -iface eth1 -prepend-rank -n 3 " + train
    )
    assert command(OpenMpi, "mpirun (Open MPI) 4.1.4", **options) == (
        f"/mpi/bin/mpirun --bind-to none --hostfile hosts --mca plm_rsh_agent sh {folder}/openmpi_ssh.sh "
        "--mca plm_rsh_assume_same_shell 0 --mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1 "
        "--tag-output -x CCL_LOG_LEVEL -x MY_DATA -x PATH -n 3 " + train
    )
    assert command(OpenMpi, "mpirun (Open MPI) 5.0.8", **options) == (
        "/mpi/bin/mpirun --bind-to none --hostfile hosts --prtemca prte_if_include eth1 "
        "--mca btl_tcp_if_include eth1 --output tag -x CCL_LOG_LEVEL -x MY_DATA -x PATH -n 3 " + train
    )
    assert command(Pals, **options, slots=(2, 1)) == (
        "/mpi/bin/mpirun --cpu-bind none --line-buffer --label --hostfile hosts --env PMI_SIZE=3 --ppn 2 -n 3 " + train
    )
    assert write([Host("h0", 2), Host("h1", 1)], Pals) == "h0\nh1\n"
    for wrong in ({"hostfile": None}, {"hostfile": "hosts", "slots": (1, 2)}):
        with pytest.raises(UserError, match="--ppn"):
            command(Pals, **wrong)


def test_command_lines_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI starts as root only if it is told to."""
    train = " ".join(TRAIN)
    assert command(IntelMpi, hostfile=None) == "/mpi/bin/mpirun -launcher fork -genv I_MPI_PIN off -n 3 " + train
    assert command(Mpich, hostfile=None) == "/mpi/bin/mpirun -launcher fork -bind-to none -ppn 3 -n 3 " + train
    assert command(OpenMpi, hostfile=None) == (
        "/mpi/bin/mpirun --bind-to none --host localhost:3 -x CCL_LOG_LEVEL -x MY_DATA -x PATH -n 3 " + train
    )
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "--bind-to none --allow-run-as-root --host " in command(OpenMpi, hostfile=None)


@pytest.mark.parametrize(
    ("mpi", "variable", "ours"),
    [
        (IntelMpi, "I_MPI_PIN_DOMAIN", "I_MPI_PIN"),
        (OpenMpi, "OMPI_MCA_plm_rsh_args", "plm_rsh_agent"),  # mpi-operator sets options of ssh
        (OpenMpi, "OMPI_MCA_plm_rsh_agent", "plm_rsh_agent"),
    ],
)
def test_what_the_user_has_chosen_stays(mpi: type[MpiLauncher], variable: str, ours: str) -> None:
    ranks = MpirunOptions(3, TRAIN, hostfile="hosts", variables=(variable,))
    assert ours not in mpi.command(Path("mpirun"), "mpirun (Open MPI) 4.1.4", ranks)


@pytest.mark.job
def test_the_first_mpirun_on_path_that_fits_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intel's finds its own programs by PATH, and Debian's mpirun is a link."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none" / "python"))
    for name, answer in (("mpiexec", "a queue of its own, 1.0"), ("mpirun.mpich", "HYDRA build details:")):
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho {name} $1 >>{tmp_path}/asked\ncase $PATH in {tmp_path}:*) echo "{answer}" >&2;; esac\n'
        )
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mpirun").symlink_to("mpirun.mpich")
    (tmp_path / "mpiexec.hydra").mkdir()
    (tmp_path / "orterun").write_text("#!/bin/sh\necho Open MPI\n")  # nobody may run it
    path = {"PATH": f"/nowhere:{tmp_path}"}
    found = find_mpirun("auto", path)
    assert (found.mpi, found.program) == (Mpich, tmp_path / "mpirun")
    assert find_mpirun("mpich", path) == found
    assert found.command(MpirunOptions(1, ("train",)))[0] == str(found.program)
    (tmp_path / "asked").unlink()
    with pytest.raises(UserError, match=r"mpirun is mpich; .*mpiexec is of an unknown MPI\)"):
        find_mpirun("openmpi", path)
    assert (tmp_path / "asked").read_text() == "mpirun.mpich --version\nmpiexec --version\n"
    with pytest.raises(UserError, match="there is none at all"):
        find_mpirun("auto", {"PATH": os.devnull})


@pytest.mark.parametrize(
    ("version", "mpi"),
    [
        ("mpirun (Open MPI) 4.1.4", OpenMpi),
        ("mpirun.real (OpenRTE) 2.1.1", OpenMpi),
        ("PRRTE 3.0.3", OpenMpi),
        ("HYDRA build details:\n    Version: 4.3", Mpich),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18", IntelMpi),
        ("mpiexec version 1.8.0 revision 3b41d0f", Pals),
        ("slurm 22.05", None),
    ],
)
def test_an_mpi_is_recognised_by_its_answer(version: str, mpi: type[MpiLauncher] | None) -> None:
    assert [one for one in MPIS if one.recognises(version)] == ([mpi] if mpi else [])


# As the launchers wrote it, without the rules between, when rank 1 of 2 was killed.
INTEL = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 26955 RUNNING AT h0
=   KILLED BY SIGNAL: 9 (Killed)
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 1 PID 26956 RUNNING AT h1
=   KILLED BY SIGNAL: 11 (Segmentation fault)
"""
MPICH = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 26962 RUNNING AT h1
=   EXIT CODE: 11
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
"""
OPEN_MPI = """
mpirun.openmpi noticed that process rank 1 with PID 0 on node h1 exited on signal 11 (Segmentation fault).
"""
PALS = """
h1: rank 1 died from signal 11 and dumped core
h0: rank 0 died from signal 15
"""


@pytest.mark.parametrize(("mpi", "said"), [(IntelMpi, INTEL), (Mpich, MPICH), (OpenMpi, OPEN_MPI), (Pals, PALS)])
def test_who_was_killed(mpi: type[MpiLauncher], said: str) -> None:
    killed = mpi.killed_ranks(said)
    assert str(first_killed(killed, {"h0": 0, "h1": 1})) == "rank 1 on h1 was killed by SIGSEGV"
    unseen = "a rank" if mpi is Mpich else "rank 1"
    assert str(first_killed(killed, {})) == f"{unseen} on h1 was killed by SIGSEGV"
    assert mpi.killed_ranks("rank 1 on h1 failed: ValueError: signal 9; ending the job") == []


def test_who_was_killed_where_hydra_fails_before_it_reports_the_signal() -> None:
    said = MPICH.partition("YOUR APPLICATION T")[0] + "[mpiexec@h0] one of the processes terminated badly; aborting\n"
    assert str(first_killed(Mpich.killed_ranks(said), {"h1": 1})).startswith("rank 1 on h1 ended without an error")
