"""The hosts of these tests: two for each file, or as many as a test asks for."""

from collections.abc import Iterator

import pytest
from bed import Bed, missing


@pytest.fixture(scope="session")
def possible() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def bed(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Two hosts that a file's tests share: leave them as you find them."""
    with Bed(tmp_path_factory.mktemp("bed")) as bed:
        yield bed


@pytest.fixture
def own_bed(possible: None, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Bed]:
    """Hosts that a test may break: two, or as many as its parameter says."""
    with Bed(tmp_path_factory.mktemp("bed"), hosts=getattr(request, "param", 2)) as bed:
        yield bed
