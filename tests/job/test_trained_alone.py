"""A script that trains on several ranks and never communicates is told so at the end, and no other script."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import mpirun, run, train

SCRIPT = """
import sys
import torch
import torch.distributed as dist

model = torch.nn.Linear(2, 1)
if "wrapped" in sys.argv:
    dist.init_process_group()
    model = torch.nn.parallel.DistributedDataParallel(model)
if "untrained" not in sys.argv:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
if "wrapped" in sys.argv:
    dist.destroy_process_group()
"""


@pytest.mark.job
@pytest.mark.parametrize(
    ("backend", "way", "lines"),
    [
        ("gloo", "alone", 1),
        ("gloo", "wrapped", 0),
        ("gloo", "untrained", 0),
        ("ccl", "alone", 1),
        ("ccl", "wrapped", 0),
    ],
)
def test_ranks_that_trained_alone(tmp_path: Path, backend: str, way: str, lines: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = run(mpirun(2, *train("--backend", backend, str(script), way)), timeout=100)
    assert result.returncode == 0, result.output
    said = "cpudist: warning: 2 ranks trained alone: they never communicated (cpudist docs own-script)\n"
    assert result.stderr.count(said) == lines, result.output
    assert result.stderr.count("trained alone") == lines, result.output
