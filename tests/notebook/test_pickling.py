"""A call is pickled with all that it uses, or the error names the object that cannot be; nodes compare their calls."""

import io
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cpudist.errors import UserError
from cpudist.notebook.pickling import pack
from cpudist.notebook.settings import digest
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
def uses_nested():
    def inside(): return lines
    return inside()
def uses_model(): return model
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
        ("uses_model", r"model \(of type __main__.Model\), which uses_model uses, .*lock"),
        ("uses_nested", r"lines \(of type generator\), which uses_nested uses,"),
        # In each rank it would describe a job of one process, and the ranks would train apart.
        ("uses_state", r"state \(of type accelerate.state.PartialState\), .*: it belongs to this process;"),
        ("uses_world", r"world \(of type cpudist.world.World\), which uses_world uses, .*: it describes this process;"),
        ("waits", r"event \(of type threading.Event\), which waits uses, .*lock"),
    ],
)
def test_what_cannot_be_serialised_is_named(run: Any, function: str, message: str) -> None:
    args = (1, threading.Lock()) if function == "takes" else ()
    with pytest.raises(UserError, match=message):
        pack(run(NOTEBOOK)[function], args, io.BytesIO())


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        (1, 2, True),
        ({"a": [1, (2, "x")]}, {"a": [1, (2, "y")]}, True),
        ([torch.zeros(2)], torch.zeros(2), True),
        (torch.zeros(2), torch.ones(2), False),  # DDP takes rank 0's weights
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), False),
        (World(0, 1, 0, 1, 0, 1, "single"), torch.zeros(2), True),
    ],
)
def test_arguments(one: Any, other: Any, differs: bool) -> None:
    assert (digest(one) != digest(other)) is differs
