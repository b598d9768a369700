"""Under Slurm's own srun, on a cluster of this one machine, the same command trains, with MPI and without."""

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
from slurm_node import slurm_node

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).parents[1] / "hosts" / "checks" / "greets.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables with which srun finds the cluster."""
    with slurm_node(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**variables, "PATH": f"{jobs.BIN}{os.pathsep}{variables['PATH']}"}


@pytest.mark.parametrize("mpi", ["none", "pmi2", "pmix"])
def test_two_ranks(cluster: dict[str, str], mpi: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    train = jobs.train("--backend", "ccl", "--record", str(record), str(SCRIPT), str(tmp_path))
    result = jobs.run(["srun", "--ntasks=2", f"--mpi={mpi}", *train], timeout=120, env=cluster)
    if "can not load PMIx library" in result.stderr:
        pytest.skip("Slurm's plugin pmix finds no libpmix.so (Debian: libpmix-dev)")
    assert result.returncode == 0, result.output
    fields = json.loads(record.read_text())
    assert (fields["launcher"], fields["world_size"], fields["exit"]) == ("slurm", 2, "completed")
    assert sorted(file.name for file in tmp_path.glob("0-*")) == ["0-0", "0-1"]


def test_one_process_of_several_tasks_is_told(cluster: dict[str, str], tmp_path: Path) -> None:
    """In a batch script without srun."""
    batch, output = tmp_path / "one.sbatch", tmp_path / "one.out"
    train = shlex.join(jobs.train("--backend", "gloo", str(SCRIPT), str(tmp_path)))
    batch.write_text(f"#!/bin/sh\n#SBATCH --ntasks=2 --output={output}\n{train}\n")
    result = jobs.run(["sbatch", "--wait", str(batch)], timeout=120, env=cluster)
    assert result.returncode == 0, result.output + output.read_text()
    assert output.read_text().count("Slurm was asked for 2 tasks, and this is one process") == 1
