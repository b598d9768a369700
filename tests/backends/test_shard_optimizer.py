"""`cpudist.wrap(model, shard_optimizer=True)`: as DDP, with the optimizer's work divided among the ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from jobs import mpirun, run

import cpudist
from cpudist.errors import UserError

ACCELERATE = """
import torch, cpudist
from accelerate import Accelerator
cpudist.init("gloo", pin=False)
Accelerator(cpu=True).prepare(cpudist.wrap(torch.nn.Linear(2, 2), shard_optimizer=True))
"""
CHECK = str(Path(__file__).parent / "checks" / "shard_optimizer.py")


@pytest.mark.job
@pytest.mark.parametrize("backend", [pytest.param("ccl", marks=pytest.mark.versions), "gloo"])
def test_it_trains_as_ddp_does_and_leaves_the_same_checkpoints(backend: str, tmp_path: Path) -> None:
    for ranks in (3, 2):  # the second job loads what the first one has saved
        result = run(mpirun(ranks, sys.executable, CHECK, backend, str(tmp_path)), timeout=100)
        assert result.returncode == 0, result.output
        assert f"shard_optimizer passed on {ranks} ranks of {backend}" in result.stdout, result.output
        assert "UserWarning" not in result.stderr, result.output


@pytest.mark.versions
@pytest.mark.job
def test_accelerate_and_trainer_refuse_it_where_they_would_wrap_it_again() -> None:
    result = run([sys.executable, "-c", ACCELERATE], timeout=100)
    assert result.returncode != 0, result.output
    assert "accelerate and Trainer wrap models themselves" in result.stderr, result.output


@pytest.mark.job
def test_master_weights_and_shards_exclude_each_other() -> None:
    cpudist.init("gloo", pin=False)
    try:
        model, _ = cpudist.optimize(torch.nn.Linear(2, 2), dtype=torch.bfloat16, keep_memory=False)
        with pytest.raises(UserError, match="does not work with master weights"):
            cpudist.wrap(model, shard_optimizer=True)
        sharded = cpudist.wrap(torch.nn.Linear(2, 2), shard_optimizer=True)
        with pytest.raises(UserError, match=r"before cpudist\.wrap"):
            cpudist.optimize(sharded, dtype=torch.bfloat16, keep_memory=False)
    finally:
        cpudist.shutdown()
