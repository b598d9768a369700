"""A job begins and ends in one process any number of times, and scripts that know only torch join it."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
import torch
from jobs import by_hand, completed, environment, launch, mpirun, torchrun
from packaging.requirements import Requirement

import cpudist
from cpudist.job.rank_context import untested_torch

CHECKS = Path(__file__).parent / "checks"
JOINS = str(CHECKS / "joins.py")
PYTHON_JOINS = [sys.executable, JOINS]


@pytest.mark.job
@pytest.mark.parametrize(
    ("launcher", "command", "size"),
    [
        ("single", PYTHON_JOINS, 1),
        pytest.param("intel-mpi", mpirun(3, *PYTHON_JOINS), 3, marks=pytest.mark.versions),
        # Without -ppn MPICH 4.0's Hydra maps one rank per host, and Intel MPI's library aborts in MPI_Init.
        ("mpich", ["mpirun.mpich", "-ppn", "2", "-n", "2", *PYTHON_JOINS], 2),
        ("open-mpi", ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", *PYTHON_JOINS], 2),
        ("torchrun", torchrun(2, JOINS), 2),
        ("env", by_hand(PYTHON_JOINS), 2),
    ],
)
def test_scripts_join_job_after_job_and_nothing_stays_behind(launcher: str, command: list[str], size: int) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    result = completed(command, timeout=150)
    assert result.stdout.count(f"{launcher}: jobs of {size}\n") == size, result.output
    assert result.stderr.count("cpudist: the script asks for the backend gloo and joins the job on ccl; ") == 1


@pytest.mark.versions
@pytest.mark.job
def test_intels_scripts_run_under_plain_mpirun_too() -> None:
    """`import torch` or `import cpudist` is enough; no group has been made before."""
    command = mpirun(2, "-env", "RANK", "0", "-env", "WORLD_SIZE", "2", sys.executable, JOINS, "ccl", "intel")
    result = completed(command, timeout=100)
    assert result.stdout.count("ccl, sum 0.0, there was a group: False\n") == 2, result.output


def test_an_interface_is_told_to_all_libraries_until_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that gloo, libfabric's providers, Open MPI and UCX read; one that the user has set stays."""
    names = ["GLOO_SOCKET_IFNAME", *(f"FI_{provider}_IFACE" for provider in ("TCP", "SOCKETS", "UDP", "VERBS"))]
    names += ["OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FI_UDP_IFACE", "mine")
    cpudist.init("gloo", interface="lo")
    during = {name: os.environ.get(name) for name in names}
    cpudist.shutdown()
    assert during == {**dict.fromkeys(names, "lo"), "FI_UDP_IFACE": "mine"}
    assert [name for name in names if name in os.environ] == ["FI_UDP_IFACE"]


def test_a_job_that_did_not_come_up_leaves_room_for_the_next() -> None:
    with pytest.raises(cpudist.UserError, match="no backend 'nonsense'"):
        cpudist.init("nonsense")
    with pytest.raises(cpudist.UserError, match="number of seconds above 0"):
        cpudist.init("gloo", timeout=0)
    with pytest.raises(cpudist.UserError, match="gloo cannot compress gradients as compress='int8' says"):
        cpudist.init("gloo", compress="int8")
    assert cpudist.init("gloo").backend == "gloo"
    assert cpudist.mean(3) == cpudist.mean(torch.tensor(3.0)) == 3.0
    calls = {"not SGD": cpudist.wrap, "number, not str": cpudist.mean, "optimizer, not str": cpudist.step}
    for wrong, call in {**calls, "give model=": cpudist.save}.items():
        with pytest.raises(cpudist.UserError, match=wrong):
            call(torch.optim.SGD([torch.ones(1)]) if call is cpudist.wrap else "x")
    with pytest.raises(cpudist.UserError, match="already running on gloo"):
        cpudist.init("ccl")
    cpudist.shutdown()
    with pytest.raises(cpudist.UserError, match="no running job"):
        cpudist.wrap(None)
    cpudist.shutdown()


PRINTS = """
import os, sys, time
import cpudist
world = cpudist.init("gloo")
if world.rank == 0:
    print("step", 0)
    deadline = time.monotonic() + 20
    while not os.path.exists(sys.argv[1]):
        if time.monotonic() > deadline:
            sys.exit("nobody has seen it")
        time.sleep(0.05)
cpudist.shutdown()
"""


@pytest.mark.job
@pytest.mark.parametrize(
    "start",
    [mpirun(1, sys.executable), launch("--nproc", "2", "--", "--backend", "gloo")],
    ids=["plain under mpirun", "launch"],
)
def test_a_line_is_shown_at_once(tmp_path: Path, start: list[str]) -> None:
    """Though Python keeps the output to a pipe back."""
    script, seen = tmp_path / "script.py", tmp_path / "seen"
    script.write_text(PRINTS)
    command = [*start, str(script), str(seen)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline() == "step 0\n"
            seen.touch()
            assert running.wait(60) == 0
        finally:
            running.terminate()


def test_a_torch_above_the_metadatas_bound_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a nightly; test_ranks.py sees the line."""
    needed = [each for each in map(Requirement, requires("cpudist") or []) if each.marker is None]
    (bound,) = (each.specifier for each in needed if each.name == "torch")
    for minor in range(8, 30):
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(f"2.{minor}.0.dev20991231+cpu"))
        assert (untested_torch() is None) == bound.contains(f"2.{minor}.1")
