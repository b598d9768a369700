"""One Slurm for all tests of pinning."""

from __future__ import annotations

from collections.abc import Iterator

import jobs
import pytest
from slurm_node import slurm_node


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with which srun starts ranks of this environment."""
    with slurm_node(tmp_path_factory.mktemp("slurm")) as variables:
        yield {**variables, "PATH": f"{jobs.BIN}:{variables['PATH']}"}
