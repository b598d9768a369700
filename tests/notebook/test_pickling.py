"""A call is pickled with all that it uses, or the error names the object that cannot be; nodes compare their calls."""

import functools
import io
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jobs import completed

from cpudist.errors import UserError
from cpudist.notebook.pickling import digest, pack
from cpudist.world import World

NOTEBOOK = """
import threading
from accelerate.state import PartialState
state = object.__new__(PartialState)
lock = threading.Lock()
lines = (line for line in "abc")
class Model:
    def __init__(self):
        self.parts = {"first": [1, lock]}
model = Model()
def helper(): return lock
def uses_helper(): return [helper() for _ in range(1)]
def uses_model(): return model
def uses_nested():
    def inside(): return lines
    return inside()
def uses_state(): return state
def uses_world(): return world
def takes(x): return None
def around():
    event = threading.Event()
    def waits(): return event
    return waits
waits = around()
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs cells as a notebook's `__main__`, and returns its variables."""

    def run(cells: str) -> dict[str, Any]:
        main = types.ModuleType("__main__")
        vars(main).update(__file__=__file__, world=World(0, 1, 0, 1, 0, 1, "single"))
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(cells, f"<cell {hash(cells)}>", "exec"), vars(main))
        return vars(main)

    return run


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("takes", r"args\[1\] \(of type _thread.lock\) cannot be serialised"),
        ("uses_helper", r"lock \(of type _thread.lock\), which helper uses,"),
        ("uses_model", r"model.parts\['first'\]\[1\] \(of type _thread.lock\), which uses_model uses,"),
        ("uses_nested", r"lines \(of type generator\), which uses_nested uses,"),
        # In each rank it would describe a job of one process, and the ranks would train apart.
        ("uses_state", r"state \(of type accelerate.state.PartialState\), .*: it belongs to this process;"),
        ("uses_world", r"world \(of type cpudist.world.World\), which uses_world uses, .*: it describes this process;"),
        ("waits", r"event\._cond\._lock \(of type _thread.lock\), which waits uses,"),
    ],
)
def test_what_cannot_be_serialised_is_named(run: Any, function: str, message: str) -> None:
    args = (1, threading.Lock()) if function == "takes" else ()
    with pytest.raises(UserError, match=message):
        pack(run(NOTEBOOK)[function], args, io.BytesIO())


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
net, bound = Net(), Net().forward
"""


def code(variables: dict[str, Any], name: str) -> str:
    """Return the digest of the code of a call."""
    return pack(print, (variables[name],), io.BytesIO())


@pytest.mark.job
def test_the_same_code_in_another_process(run: Any) -> None:
    """Hashes of texts differ there, so sets have another order."""
    program = (
        f"{CELLS}\nimport io\nfrom cpudist.notebook.pickling import pack\nprint(pack(print, (train,), io.BytesIO()))"
    )
    assert completed([sys.executable, "-c", program], timeout=60).stdout.strip() == code(run(CELLS), "train")


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
    ],
)
def test_code(run: Any, name: str, before: str, after: str, differs: bool) -> None:
    assert before in CELLS
    assert (code(run(CELLS), name) != code(run(CELLS.replace(before, after)), name)) is differs


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (1, 2, True),
        ({"a": [1, (2, "x")]}, {"a": [1, (2, "y")]}, True),
        (World(0, 1, 0, 1, 0, 1, "single"), World(0, 1, 0, 1, 0, 1, "mpi"), True),  # a dataclass
        (functools.partial(print, 5), functools.partial(print, 6), True),
        (torch.zeros(2), torch.zeros(3), True),
        (torch.zeros(2), torch.ones(2), False),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), False),
        (object(), object(), False),
    ],
)
def test_arguments(one: Any, other: Any, differs: bool) -> None:
    assert (digest(one) != digest(other)) is differs
