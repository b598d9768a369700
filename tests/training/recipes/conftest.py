"""Prepared data goes into a folder of the test module's, and not into the user's own cache."""

from __future__ import annotations

from collections.abc import Iterator

import datasets
import pytest


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = str(tmp_path_factory.mktemp("datasets"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_CACHE", folder)  # for jobs
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)  # for this process
        yield
