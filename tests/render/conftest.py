"""`cpudist render`, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from cpudist.cli.main import main

TARGET = ("--", "images", "--dataset_name", "digits", "--output_dir", "out", "--do_train")


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What `cpudist render WORDS -- TARGET` prints."""

    def render(*words: str, target: tuple[str, ...] = TARGET) -> str:
        status = main(["render", *words, *target])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    return render


@pytest.fixture
def documents(text: Callable[..., str]) -> Callable[..., list[dict[str, Any]]]:
    """The same, parsed as Kubernetes parses it."""
    return lambda *words, **more: list(yaml.safe_load_all(text(*words, **more)))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """The lines with which `cpudist render WORDS` ends, with exit status 2."""

    def render(*words: str, target: tuple[str, ...] = TARGET) -> list[str]:
        status = main(["render", *words, *target])
        printed = capsys.readouterr()
        assert (status, printed.out) == (2, "")
        return printed.err.splitlines()

    return render
