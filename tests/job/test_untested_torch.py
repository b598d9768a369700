"""A torch above the bound in the package's metadata, such as a nightly, is warned of."""

from importlib.metadata import requires

import pytest
import torch
from packaging.requirements import Requirement

from cpudist.job.rank_context import untested_torch


def _nightly(above: int) -> torch.torch_version.TorchVersion:
    """Return the version of a nightly so many releases above the newest in the bound."""
    needed = [each for each in map(Requirement, requires("cpudist") or []) if each.marker is None]
    (wanted,) = (each for each in needed if each.name == "torch")
    newest = max(minor for minor in range(99) if wanted.specifier.contains(f"2.{minor}.1"))
    return torch.torch_version.TorchVersion(f"2.{newest + above}.0.dev20991231+cpu")


@pytest.mark.parametrize(("above", "warned"), [(0, False), (1, True)])
def test_the_bound_is_that_of_the_metadata(above: int, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", _nightly(above))
    assert (untested_torch() is not None) == warned
