"""A job begins and ends in one process any number of times, and scripts that know only torch join it."""

import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from job.checks.joins import WAYS
from jobs import by_hand, mpirun, run, torchrun, train

import cpudist

CHECKS = Path(__file__).parent / "checks"


@pytest.mark.job
@pytest.mark.parametrize(
    ("launcher", "launch", "size"),
    [
        ("single", [sys.executable], 1),
        pytest.param("intel-mpi", mpirun(3, sys.executable), 3, marks=pytest.mark.versions),
        # Without -ppn MPICH 4.0's Hydra maps one rank per host, and Intel MPI's library aborts in MPI_Init.
        ("mpich", ["mpirun.mpich", "-ppn", "2", "-n", "2", sys.executable], 2),
        ("open-mpi", ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable], 2),
        ("torchrun", torchrun(2), 2),
    ],
)
def test_one_job_after_the_other_leaves_nothing_behind(launcher: str, launch: list[str], size: int) -> None:
    if shutil.which(launch[0]) is None:
        pytest.skip(f"{launch[0]} is not installed")
    result = run([*launch, str(CHECKS / "again.py")], timeout=150)
    assert result.returncode == 0, result.output
    assert result.stdout.count(f"{launcher}: five jobs of {size}\n") == size, result.output


@pytest.mark.job
def test_one_job_after_the_other_of_plain_processes() -> None:
    result = run(by_hand([sys.executable, str(CHECKS / "again.py")]), timeout=150)
    assert result.returncode == 0, result.output
    assert result.stdout.count("env: five jobs of 2\n") == 2, result.output


@pytest.mark.versions
@pytest.mark.job
def test_scripts_that_make_their_process_group_join() -> None:
    """A job of two ranks joins in all ways, one after the other."""
    result = run(mpirun(2, sys.executable, str(CHECKS / "joins.py")), timeout=150)
    assert result.returncode == 0, result.output
    said = [f"{way}: {backend}, sum 1.0, there was a group: True" for backend, ways in WAYS.items() for way in ways]
    said.append("by gloo's name: ccl, sum 1.0, there was a group: True")
    lines = [f"rank {rank} {what}\n" for rank in (0, 1) for what in said]
    assert [line for line in lines if line not in result.stdout] == [], result.output
    assert result.stderr.count("cpudist: the script asks for the backend gloo and joins the job on ccl; ") == 1


@pytest.mark.job
def test_a_script_that_contradicts_the_job_ends_in_one_line() -> None:
    script = str(CHECKS / "joins.py")
    result = run(mpirun(2, *train(script, "nccl", "by name")), timeout=100)
    assert result.returncode == 2, result.output
    assert re.fullmatch("cpudist: the script asks for the backend nccl, but the job runs on ccl; .*\n", result.report)


@pytest.mark.versions
@pytest.mark.job
def test_intels_scripts_run_under_plain_mpirun_too() -> None:
    """`import torch` or `import cpudist` is enough; no group has been made before."""
    launch = mpirun(2, "-env", "RANK", "0", "-env", "WORLD_SIZE", "2", sys.executable)
    result = run([*launch, str(CHECKS / "joins.py"), "ccl", "intel"], timeout=100)
    assert result.returncode == 0, result.output
    assert result.stdout.count(" intel: ccl, sum 0.0, there was a group: False\n") == 2, result.output


@pytest.mark.job
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="pip install --no-build-isolation deepspeed")
def test_deepspeed_joins_and_its_losses_are_those_of_gloo() -> None:
    script, losses = str(CHECKS / "deepspeed_zero.py"), []
    for backend, command in (("gloo", torchrun(2, script)), ("ccl", mpirun(2, *train(script)))):
        result = run(command, timeout=240, env={"DS_ACCELERATOR": "cpu"})
        assert result.returncode == 0, result.output
        losses.append({line.removeprefix(backend) for line in result.stdout.splitlines() if line.startswith(backend)})
    assert len(losses[0]) == 6
    assert losses[0] == losses[1]


def test_an_interface_is_told_to_all_libraries_until_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that gloo, libfabric's providers, Open MPI and UCX read; one that the user has set stays."""
    names = ["GLOO_SOCKET_IFNAME", *(f"FI_{provider}_IFACE" for provider in ("TCP", "SOCKETS", "UDP", "VERBS"))]
    names += ["OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FI_UDP_IFACE", "mine")
    cpudist.init("gloo", interface="lo")
    try:
        assert {name: os.environ[name] for name in names} == {**dict.fromkeys(names, "lo"), "FI_UDP_IFACE": "mine"}
    finally:
        cpudist.shutdown()
    assert [name for name in names if name in os.environ] == ["FI_UDP_IFACE"]


def test_a_job_that_did_not_come_up_leaves_room_for_the_next() -> None:
    with pytest.raises(cpudist.UserError, match="no backend 'nonsense'"):
        cpudist.init("nonsense")
    with pytest.raises(cpudist.UserError, match="number of seconds above 0"):
        cpudist.init("gloo", timeout=0)
    assert cpudist.init("gloo").backend == "gloo"
    with pytest.raises(cpudist.UserError, match="already running on gloo"):
        cpudist.init("ccl")
    cpudist.shutdown()
    with pytest.raises(cpudist.UserError, match="no running job"):
        cpudist.wrap(None)
    cpudist.shutdown()
