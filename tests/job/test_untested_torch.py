"""A torch above the bound in the package's metadata, such as a nightly, is warned of; test_ranks.py sees the line."""

from importlib.metadata import requires

import pytest
import torch
from packaging.requirements import Requirement

from cpudist.job.rank_context import untested_torch


def test_the_bound_is_that_of_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [each for each in map(Requirement, requires("cpudist") or []) if each.marker is None]
    (bound,) = (each.specifier for each in needed if each.name == "torch")
    for minor in range(8, 30):
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(f"2.{minor}.0.dev20991231+cpu"))
        assert (untested_torch() is None) == bound.contains(f"2.{minor}.1")
