"""Set before any test is collected."""

from __future__ import annotations

import os

import pytest

# Some tests run parts of a recipe in this process, outside any job, so without cpudist's hold on accelerate, which
# would take torch_xla where that is installed. It reads this when it is imported. Jobs do not inherit it: see jobs.py.
os.environ["USE_TORCH_XLA"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long."""
    parser.addoption("--long", action="store_true", help="run tests marked `long` too: whole stories, minutes each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long tests to who asks for them."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: scripts/test.sh --long runs it"))
