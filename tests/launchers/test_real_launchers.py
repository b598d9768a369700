"""Real launchers: Slurm's srun on this machine, and those whose ranks could not communicate, refused in one line."""

import json
import shutil
import sys
from pathlib import Path

import jobs
import pytest
from launcher_variables import BATCH_SCRIPT

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parents[1] / "hosts" / "checks" / "greets.py"


@pytest.mark.parametrize("mpi", ["none", "pmi2", "pmix"])
def test_two_ranks(slurm: dict[str, str], mpi: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    train = jobs.train("--backend", "ccl", "--record", str(record), str(SCRIPT), str(tmp_path))
    result = jobs.run(["srun", "--ntasks=2", f"--mpi={mpi}", *train], timeout=120, env=slurm)
    if "can not load PMIx library" in result.stderr:
        pytest.skip("Slurm's plugin pmix finds no libpmix.so (Debian: libpmix-dev)")
    assert result.returncode == 0, result.output
    fields = json.loads(record.read_text())
    assert (fields["launcher"], fields["world_size"], fields["exit"]) == ("slurm", 2, "completed")
    assert sorted(file.name for file in tmp_path.glob("0-*")) == ["0-0", "0-1"]


ASKS = """
import os
from accelerate import PartialState
state = PartialState(cpu=True)
slurm = [os.environ[f"SLURM_{name}"] for name in ("PROCID", "NTASKS", "LOCALID")]  # as Lightning reads them
print(f"{state.process_index} {state.num_processes} {state.local_process_index}, {' '.join(slurm)}\\n", end="")
"""


def test_libraries_name_the_same_rank_inside_sbatch(tmp_path: Path) -> None:
    """sbatch says to both ranks that they are rank 0 of 4, and Lightning believed it."""
    record, script = tmp_path / "record.json", tmp_path / "asks.py"
    script.write_text(ASKS)
    command = jobs.mpirun(2, "-bootstrap", "fork", *jobs.train("--record", str(record), str(script)))
    result = jobs.completed(command, timeout=120, env=BATCH_SCRIPT)
    assert sorted(result.stdout.splitlines()) == ["0 2 0, 0 2 0", "1 2 1, 1 2 1"]
    assert json.loads(record.read_text())["corrected_variables"] == ["SLURM_LOCALID", "SLURM_NTASKS", "SLURM_PROCID"]


PROGRAM = """
import cpudist, sys
try:
    cpudist.init("gloo", timeout=80)
except cpudist.UserError as error:
    sys.exit(f"refused: {error}")
cpudist.shutdown()
"""


def test_a_split_world_is_refused() -> None:
    intel = Path(sys.prefix) / "lib" / "libmpi.so.12"
    if not intel.exists() or shutil.which("mpirun.openmpi") is None:
        pytest.skip(f"{intel} or mpirun.openmpi is not there")
    launcher = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    done = jobs.run([*launcher, sys.executable, "-c", PROGRAM], timeout=90, env={"MPI4PY_LIBMPI": str(intel)})
    assert done.returncode != 0
    assert "refused: " in done.stderr, done.output
    assert "Intel(R) MPI Library" in done.stderr
    assert "MPI4PY_LIBMPI" in done.stderr


def test_intels_mpirun_with_another_hydra_first_on_path_says_so() -> None:
    if shutil.which("mpirun.mpich") is None:
        pytest.skip("mpirun.mpich is not installed")
    # jobs.run puts the environment first; here the system's programs come before it.
    done = jobs.run(["env", "PATH=/usr/bin:/bin", *jobs.mpirun(2), sys.executable, "-c", PROGRAM], timeout=90)
    assert "refused: Intel MPI's mpirun has started MPICH's mpiexec.hydra" in done.stderr, done.output
