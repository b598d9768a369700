"""Under Slurm's own srun, on a cluster of this one machine, the same command trains, with MPI and without."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jobs
import pytest
from slurm_node import slurm_node

SCRIPT = Path(__file__).parents[1] / "hosts" / "checks" / "greets.py"


@pytest.mark.parametrize("mpi", ["none", "pmi2", "pmix"])
def test_two_ranks(mpi: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    train = jobs.train("--backend", "ccl", "--record", str(record), str(SCRIPT), str(tmp_path))
    with slurm_node(tmp_path) as variables:
        path = f"{jobs.BIN}{os.pathsep}{variables['PATH']}"
        command = ["srun", "--ntasks=2", f"--mpi={mpi}", *train]
        result = jobs.run(command, timeout=120, env={**variables, "PATH": path})
    if "can not load PMIx library" in result.stderr:
        pytest.skip("Slurm's plugin pmix finds no libpmix.so (Debian: libpmix-dev)")
    assert result.returncode == 0, result.output
    fields = json.loads(record.read_text())
    assert (fields["launcher"], fields["world_size"], fields["exit"]) == ("slurm", 2, "completed")
    assert sorted(file.name for file in tmp_path.glob("0-*")) == ["0-0", "0-1"]
