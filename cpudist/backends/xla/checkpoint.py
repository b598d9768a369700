"""Checkpoints of a model on a mesh: written in pieces, and read on the same mesh, on another one, or without one.

The pieces have the format of `torch.distributed.checkpoint`, so a job on ccl or gloo reads them:
``dcp.load({"model": model.state_dict()}, checkpoint_id=path)``.
Source: PyTorch/XLA 2.8, docs/source/perf/spmd_distributed_checkpoint.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import torch_xla
from torch.distributed.checkpoint.planner import SavePlan
from torch_xla.core import xla_model
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner, prime_optimizer


def save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Write model and optimizer into the folder `path`; each process writes the pieces that its devices hold."""
    torch_xla.sync(reset_scope=False)
    xla_model.wait_device_ops()  # values that the device still computes have no pieces to read yet
    with _quiet():
        dcp.save(_state(model, optimizer), checkpoint_id=path, planner=_SavePlanner())


def load(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Read model and optimizer from the folder `path` into a model that `cpudist.wrap` has placed on the mesh."""
    if optimizer is not None and not optimizer.state:
        prime_optimizer(optimizer)  # dcp reads into tensors that exist
    state = _state(model, optimizer)
    with _quiet():
        dcp.load(state, checkpoint_id=path, planner=SPMDLoadPlanner())
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])


class _SavePlanner(SPMDSavePlanner):  # type: ignore[misc]
    """Writes once what several devices of this process hold; torch_xla's own planner (2.8) does not write it at all."""

    def create_local_plan(self) -> SavePlan:
        plan: SavePlan = super().create_local_plan()
        first = {item.index: item for item in reversed(plan.items)}
        return dataclasses.replace(plan, items=list(reversed(first.values())))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of torch about torch_xla's own code (2.8)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The function definition for SavePlanner|TypedStorage|Using a non-tuple")
        yield


def _state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": model.state_dict()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
    return state
