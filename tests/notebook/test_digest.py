"""The same cells have the same digests in every process, and another code or value has another one."""

from __future__ import annotations

import subprocess
import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from cpudist.notebook.carry import digest

CELLS = """
from functools import partial
lr = 0.1
class Base:
    def reset(self): return 7
class Net(Base):
    def forward(self, x): return helper(x) if x in {"a", "b", "c"} else x
    @property
    def size(self): return 10
    @staticmethod
    def make(): return Net(20)
def helper(x): return x + 1
def train(x, scale=2):
    def inner(): return [helper(y) for y in (x, lr)]
    return (inner(), Net, train) if scale else None
net, bound, part = Net(), Net().forward, partial(helper, 5)
"""


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs `CELLS`, with a change, as a notebook's and returns its variables."""

    def run(before: str = "", after: str = "") -> dict[str, Any]:
        assert before in CELLS
        main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(CELLS.replace(before, after), f"<cell {after}>", "exec"), vars(main))
        return vars(main)

    return run


@dataclass
class Config:
    lr: float


@pytest.mark.job
def test_the_same_code_in_another_process(cells: Any) -> None:
    """Hashes of texts differ there, so sets have another order."""
    program = f"{CELLS}\nfrom cpudist.notebook.carry import digest\nprint(digest(train))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == digest(cells()["train"])


@pytest.mark.parametrize(
    ("name", "before", "after", "differs"),
    [
        ("train", "x + 1", "x + 2", True),
        ("train", "scale=2", "scale=3", True),
        ("train", '"c"}', '"d"}', True),
        ("train", "(x, lr)", "(x, 1)", True),
        ("train", "return 7", "return 8", True),
        ("train", "return 10", "return 11", True),
        ("train", "Net(20)", "Net(21)", True),
        ("train", "lr = 0.1", "lr = 0.2", False),
        ("train", "def helper", "\n\ndef helper", False),
        ("net", "return 7", "return 8", True),
        ("bound", "x + 1", "x + 2", True),
        ("part", "helper, 5", "helper, 6", True),
    ],
)
def test_code(cells: Any, name: str, before: str, after: str, differs: bool) -> None:
    assert digest(cells()[name]) == digest(cells()[name])
    assert (digest(cells()[name]) != digest(cells(before, after)[name])) is differs


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (1, 2, True),
        ({"a": [1, (2, "x")]}, {"a": [1, (2, "y")]}, True),
        (Config(0.1), Config(0.2), True),
        (torch.zeros(2), torch.zeros(3), True),
        (torch.zeros(2), torch.ones(2), False),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), False),
        (object(), object(), False),
    ],
)
def test_arguments(one: Any, other: Any, differs: bool) -> None:
    assert (digest(one) != digest(other)) is differs
