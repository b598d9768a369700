"""Checkpoints of a model on a mesh: written in pieces, read on the same mesh, another one, or none.

Pieces are `torch.distributed.checkpoint`'s, so a job on ccl or gloo reads them with that: see `load_plain`.
Source: PyTorch/XLA 2.8, docs/source/perf/spmd_distributed_checkpoint.md.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner, prime_optimizer


def save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write model and optimizer into the folder `path`, each process the pieces that its devices hold."""
    dcp.save(_state(model, optimizer), checkpoint_id=path, planner=SPMDSavePlanner())


def load(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read model and optimizer from the folder `path` into what `cpudist.wrap` has laid out on this job's mesh."""
    if optimizer is not None and not optimizer.state:
        prime_optimizer(optimizer)  # what it will hold must be there to be read into
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=path, planner=SPMDLoadPlanner())
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    return state
