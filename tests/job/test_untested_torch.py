"""A torch above the bound in the package's metadata, such as a nightly, is warned of once in each job."""

from importlib.metadata import requires

import pytest
import torch
from jobs import mpirun, run
from packaging.requirements import Requirement

from cpudist.job.rank_context import untested_torch

_JOB = "import torch; torch.__version__ = torch.torch_version.TorchVersion('{}'); import cpudist; cpudist.init('gloo')"


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


@pytest.mark.job
def test_one_line_in_a_job_of_two_ranks() -> None:
    result = run(mpirun(2, "python", "-c", _JOB.format(_nightly(1))), timeout=120)
    assert result.returncode == 0, result.output
    assert result.output.count(f"cpudist: warning: cpudist was not tested with torch {_nightly(1)}, only up to 2.") == 1
