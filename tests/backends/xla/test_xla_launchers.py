"""xla under srun and over two hosts: the job that mpirun makes of it on one, with the same losses."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path

import jobs
import pytest
from bed import Bed, missing
from slurm_node import slurm_node

from cpudist.backends.ccl.compilation import cache_folder

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

pytestmark = [pytest.mark.job, pytest.mark.long, pytest.mark.versions]

PROGRAM = str(Path(__file__).resolve().parents[3] / "examples" / "one_program.py")
BOUND = 150.0


def _command(record: Path) -> list[str]:
    return jobs.train("--backend", "xla", "--record", str(record), PROGRAM, str(record.with_name("out")))


def _check(result: jobs.Result, record: Path, launcher: str, hosts: int, host: str) -> None:
    """The job was one, was started so, and has the losses of one process on gloo."""
    assert result.returncode == 0, result.output
    alone = jobs.run(jobs.train("--backend", "gloo", PROGRAM, str(record.with_name("alone"))), timeout=BOUND)
    assert _losses(result) == pytest.approx(_losses(alone), abs=1e-4)
    fields = json.loads(record.read_text())
    assert (fields["launcher"], fields["world_size"], fields["exit"]) == (launcher, 2, "completed")
    assert len(fields["hosts"]) == hosts
    assert fields["details"]["gradients"] == f"through the host, over {host}"


def _losses(result: jobs.Result) -> list[float]:
    losses = [float(text) for text in re.findall(r"step \d+ loss (\S+)", result.stdout)]
    assert len(losses) == 20, result.output
    return losses


@pytest.mark.parametrize("mpi", ["none", "pmi2"])
def test_under_srun(mpi: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    with slurm_node(tmp_path) as variables:
        path = f"{jobs.BIN}{os.pathsep}{variables['PATH']}"
        command = ["srun", "--ntasks=2", f"--mpi={mpi}", *_command(record)]
        result = jobs.run(command, timeout=BOUND, env={**variables, "PATH": path})
    _check(result, record, "slurm", 1, "ccl")


def test_over_two_hosts(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    record = tmp_path / "record.json"
    with Bed(tmp_path) as bed:
        mpirun = ["mpirun", "-f", bed.hostfile(), "-n", "2", "-ppn", "1"]
        cache = {"CPUDIST_CACHE": str(cache_folder())}  # what is compiled here serves the other host too
        result = bed.run("h0", [*mpirun, *_command(record)], timeout=BOUND, env=cache)
    _check(result, record, "intel-mpi", 2, "ccl")


def test_over_two_hosts_by_torchrun(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    record = tmp_path / "record.json"
    torchrun = [str(jobs.BIN / "torchrun"), "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "h0:29500", "--no-python", *_command(record)]
    with Bed(tmp_path) as bed:
        cache = {"CPUDIST_CACHE": str(cache_folder())}
        other = bed.start("h1", torchrun, tmp_path / "h1", env=cache)
        result = bed.run("h0", torchrun, timeout=BOUND, env=cache)
        assert other.wait(timeout=30) == 0, (tmp_path / "h1").read_text()
    _check(result, record, "torchrun", 2, "ccl")
