"""Launchers whose ranks could not communicate are refused in one line; tests/job/test_job.py runs under the others."""

import shutil
import sys
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.job

PROGRAM = """
import cpudist, sys
try:
    cpudist.init("gloo", timeout=80)
except cpudist.UserError as error:
    sys.exit(f"refused: {error}")
cpudist.shutdown()
"""


def run(*command: str, **env: str) -> jobs.Result:
    return jobs.run([*command, sys.executable, "-c", PROGRAM], timeout=90, env=env)


def test_a_split_world_is_refused() -> None:
    intel = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if not intel.exists() or shutil.which("mpirun.openmpi") is None:
        pytest.skip(f"{intel} or mpirun.openmpi is not there")
    launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    done = run(*launcher, MPI4PY_LIBMPI=str(intel))
    assert done.returncode != 0
    assert "refused: " in done.stderr, done.output
    assert "Intel(R) MPI Library" in done.stderr
    assert "MPI4PY_LIBMPI" in done.stderr


def test_intels_mpirun_with_another_hydra_first_on_path_says_so() -> None:
    if shutil.which("mpirun.mpich") is None:
        pytest.skip("mpirun.mpich is not installed")
    # jobs.run puts the environment first; here the system's programs come before it.
    done = run("env", "PATH=/usr/bin:/bin", *jobs.mpirun(2))
    assert "refused: Intel MPI's mpirun has started MPICH's mpiexec.hydra" in done.stderr, done.output
