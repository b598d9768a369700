"""Arguments of a cell: a wrong one is an error of one line, before anything starts. How several nodes' cells meet."""

import inspect
from typing import Any

import pytest
from clocks import Clock
from launcher_variables import BY_HAND

from cpudist import notebook_launcher
from cpudist.errors import StartupTimeout, UserError
from cpudist.job.job_options import JobOptions
from cpudist.launchers import Placement
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.settings import Settings, checked
from cpudist.store import Address, Connection
from cpudist.store.process import StoreProcess

# What `notebook_launcher` hands on where a call gives neither function nor arguments.
_PARAMETERS = list(inspect.signature(notebook_launcher).parameters.values())[2:-1]
GIVEN: dict[str, Any] = {**{one.name: one.default for one in _PARAMETERS}, "options": {}}

WRONG: dict[str, list[Any]] = {
    "function": [3],
    "args": [3],
    "num_processes": [0, True],
    "num_nodes": ["bf16", 2],  # two nodes need master_addr
    "node_rank": [-1, 1],
    "use_port": ["70000"],
    "master_port": [70000],
    "bogus": [1],
    "backend": ["nccl"],
    "mixed_precision": ["fp8", None],
    "max_restarts": [-1],
    "timeout": ["soon"],
    "log_line_prefix_template": ["${host}"],
}
TOGETHER = [{"num_nodes": 2, "master_addr": 7}, {"use_port": 1, "master_port": 1}]


@pytest.mark.parametrize("given", [*({name: one} for name, values in WRONG.items() for one in values), *TOGETHER])
def test_a_wrong_argument_is_named_in_one_line(given: dict[str, Any]) -> None:
    call = {"function": print, **given}
    with pytest.raises(UserError) as caught:
        notebook_launcher(**call)
    assert list(given)[-1] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [f"cpudist: {caught.value}"]


def test_a_rank_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BY_HAND.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="this process is a rank of env already"):
        notebook_launcher(print)


def test_the_parameters_are_accelerates_in_its_order() -> None:
    import accelerate

    names = list(inspect.signature(accelerate.notebook_launcher).parameters)
    assert list(inspect.signature(notebook_launcher).parameters)[: len(names)] == names


def test_what_is_for_torchelastic_is_taken_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    elastic = {"rdzv_backend": "c10d", "rdzv_endpoint": "h0:5", "rdzv_conf": {"timeout": 9}, "monitor_interval": 1}
    assert checked(print, (), {**GIVEN, **elastic}).master_addr == "127.0.0.1"
    (line,) = capsys.readouterr().err.splitlines()
    assert all(name in line for name in elastic)


def test_nodes_have_an_address_and_their_ranks_numbers() -> None:
    several = {**GIVEN, "num_nodes": 3, "node_rank": 1, "rdzv_endpoint": "h0:5"}
    settings = checked(print, (), several)
    assert (settings.master_addr, settings.master_port) == ("h0", 5)
    assert [settings.placement(one) for one in (0, 1)] == [Placement(2, 6, 0, 2, 1, 3), Placement(3, 6, 1, 2, 1, 3)]
    settings = checked(print, (), {**several, "master_addr": "h1", "use_port": "7"})  # a port may be text
    assert (settings.master_addr, settings.master_port) == ("h1", 7)


@pytest.mark.job
def test_a_cell_waits_in_time_while_only_the_last_launch_is_there(clock: Clock) -> None:
    store = StoreProcess(["127.0.0.1"], 0, b"", 5)
    last = Connection(Address(("127.0.0.1",), store.port, b"", 5, "job/nodes"), 5)
    last.set({"left/1": b"1"})
    last.add("arrived/1", 1)
    settings = Settings({}, 1, 2, 1, "127.0.0.1", store.port, JobOptions(timeout=60), "no", 0, None, "job", "")
    with pytest.raises(StartupTimeout, match="no cell with node_rank=0 was found"):
        Nodes(settings)
    assert 1060 <= clock.now <= 1061
    assert 200 < last.add("arrived/1", 0) <= 60 / 0.2 + 10
    last.close()
    store.close()
