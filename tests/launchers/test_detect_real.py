"""Two ranks under each launcher of this machine are recognised, meet, and find each other on one node."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.job

OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]

PROGRAM = """
import socket, sys
from cpudist.launchers import detect
from cpudist.errors import UserError
from cpudist.topology.identity import node_identity
from cpudist.rendezvous import all_gather, connect
from cpudist.world import RankInfo, assign_nodes

launcher = detect()
placement = launcher.placement()
try:
    store = connect(launcher.rendezvous(), placement, "test", 30).store
except UserError as error:
    sys.exit(f"refused: {error}")
own = RankInfo(node_identity(), socket.gethostname(), placement).to_json()
texts = all_gather(store, placement.rank, placement.size, "member", own, 30, what="testing")
world = assign_nodes([RankInfo.from_json(text) for text in texts], launcher.name)[placement.rank]
sys.stdout.write(f"{world}\\n")
sys.stdout.flush()
all_gather(store, placement.rank, placement.size, "leaving", "", 30, what="leaving")  # rank 0 serves the store
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(command: list[str], script: str, **env: str) -> jobs.Result:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    python = [script] if command[0].endswith("torchrun") else [sys.executable, script]
    return jobs.run([*command, *python], timeout=90, env=env)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("intel-mpi", jobs.mpirun(2)),
        # Without -ppn MPICH 4.0's Hydra maps one rank per host, and Intel MPI's library aborts in MPI_Init.
        ("mpich", ["mpirun.mpich", "-ppn", "2", "-n", "2"]),
        ("open-mpi", OPEN_MPI),
        ("torchrun", jobs.torchrun(2)),
    ],
)
def test_two_ranks_meet(name: str, command: list[str], script: str) -> None:
    done = run(command, script)
    assert done.returncode == 0, done.output
    worlds = [f"World(rank={n}(2), local_rank={n}(2), node=0(1), backend='', launcher='{name}')" for n in (0, 1)]
    assert sorted(line for line in done.stdout.splitlines() if line) == worlds


def test_a_split_world_is_refused(script: str) -> None:
    intel = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if not intel.exists():
        pytest.skip(f"{intel} is not there")
    done = run(OPEN_MPI, script, MPI4PY_LIBMPI=str(intel))
    assert done.returncode != 0
    assert "refused: " in done.stderr
    assert "Intel(R) MPI Library" in done.stderr
    assert "MPI4PY_LIBMPI" in done.stderr


def test_intels_mpirun_with_another_hydra_first_on_path_says_so(script: str) -> None:
    if shutil.which("mpirun.mpich") is None:
        pytest.skip("mpirun.mpich is not installed")
    # jobs.run puts the environment first; here the system's programs come before it.
    command = ["env", "PATH=/usr/bin:/bin", *jobs.mpirun(2), sys.executable, script]
    result = jobs.run(command, timeout=90)
    assert "refused: Intel MPI's mpirun has started MPICH's mpiexec.hydra" in result.stderr, result.output
