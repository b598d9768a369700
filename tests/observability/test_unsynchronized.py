"""A script that trains on several ranks and never communicates is told so at the end, and no other script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jobs import mpirun, run

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import cpudist

kept = []
for backend in ("gloo", "ccl"):
    for way in ("alone", "wrapped", "untrained"):
        world = cpudist.init(backend)
        model = torch.nn.Linear(2, 1)
        if way == "wrapped":
            model = torch.nn.parallel.DistributedDataParallel(model)
            kept.append(model)  # to free it after its gloo group has blocked once, inside torch 2.13
        if way != "untrained":
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                model(torch.ones(4, 2)).sum().backward()
                optimizer.step()
        cpudist.shutdown()
        if world.rank == 0:
            print(f"{backend} {way}", file=sys.stderr)
"""


@pytest.mark.job
def test_ranks_that_trained_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = run(mpirun(2, sys.executable, str(script)), timeout=100)
    assert result.returncode == 0, result.output
    said = "cpudist: warning: 2 ranks trained without gradient synchronisation (cpudist docs own-script)\n"
    for backend in ("gloo", "ccl"):
        assert f"{said}{backend} alone\n" in result.stderr, result.output
    assert result.stderr.count("gradient synchronisation") == 2, result.output
