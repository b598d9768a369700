"""libfabric's provider in the run record: what MPI or oneCCL has opened."""

from __future__ import annotations

import json
from pathlib import Path

import jobs
import pytest

SCRIPT = "import torch, torch.distributed as dist\ndist.all_reduce(torch.ones(3))\nprint('summed')\n"
OVER_FABRIC = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp"}


@pytest.mark.parametrize(
    ("launcher", "variables", "provider"),
    [
        ("mpirun", {}, None),  # all ranks share a machine: MPI opens none
        ("mpirun", OVER_FABRIC, "tcp"),
        ("mpirun", {"I_MPI_FABRICS": "ofi", "I_MPI_OFI_PROVIDER": "shm"}, "shm"),
        ("torchrun", {"CPUDIST_TRANSPORT": "oneccl", "FI_PROVIDER": "tcp"}, "tcp"),
    ],
)
def test_the_record_names_the_provider(
    launcher: str, variables: dict[str, str], provider: str | None, tmp_path: Path
) -> None:
    result, network = job_on(launcher, variables, tmp_path)
    assert network["provider"] == provider
    assert result.stdout.count("summed") == 2, result.output


def test_what_the_user_asks_of_intel_mpi_is_shown_to_the_user(tmp_path: Path) -> None:
    result, network = job_on("mpirun", {**OVER_FABRIC, "I_MPI_DEBUG": "1"}, tmp_path)
    assert network["provider"] is None
    assert "libfabric provider: tcp" in result.stdout, result.output


def job_on(launcher: str, variables: dict[str, str], folder: Path) -> tuple[jobs.Result, dict[str, str | None]]:
    """Run a job of two ranks on ccl; what it wrote, and the record's `network`."""
    script, record = folder / "script.py", folder / "record.json"
    script.write_text(SCRIPT)
    arguments = ["--backend", "ccl", "--record", str(record), str(script)]
    if launcher == "mpirun":
        command = jobs.mpirun(2, *jobs.train(*arguments))
    else:
        command = jobs.torchrun(2, "--no-python", *jobs.train(*arguments))
    result = jobs.run(command, 90, env=variables)
    assert result.returncode == 0, result.output
    return result, json.loads(record.read_text())["network"]
