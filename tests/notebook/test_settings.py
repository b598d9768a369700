"""A wrong argument is an error of one line, before anything starts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from launcher_variables import BY_HAND

from cpudist import notebook_launcher
from cpudist.errors import UserError
from cpudist.launchers import Placement
from cpudist.notebook.settings import check

# What `notebook_launcher` hands on where a call gives neither function nor arguments.
_PARAMETERS = list(inspect.signature(notebook_launcher).parameters.values())[2:-1]
GIVEN: dict[str, Any] = {**{one.name: one.default for one in _PARAMETERS}, "options": {}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"function": 3}, "takes a function, not 3"),
        ({"args": 3}, r"args must be a tuple of the function's arguments, not 3; one alone is \(x,\)"),
        ({"num_processes": 0}, "num_processes must be a whole number from 1 on, not 0"),
        ({"num_processes": True}, "num_processes must be a whole number"),
        ({"num_nodes": "bf16"}, "num_nodes must be a whole number from 1 on, not 'bf16'"),
        ({"num_nodes": 2}, "num_nodes=2 needs master_addr"),
        ({"node_rank": 1}, "node_rank=1 is not below num_nodes=1"),
        ({"node_rank": -1}, "node_rank must be a whole number from 0 on"),
        ({"num_nodes": 2, "master_addr": 7}, "master_addr must be the name or address of a node, not 7"),
        ({"master_port": 70000}, "master_port must be a port from 1 to 65535"),
        ({"bogus": 1}, "the backend ccl takes no --bogus"),
        ({"backend": "nccl"}, "there is no backend 'nccl'; choose auto or one of accelerator, ccl, gloo, xla"),
        ({"mixed_precision": "fp8"}, "mixed_precision='fp8' cannot be used, no CPU computes in it"),
        ({"mixed_precision": None}, "mixed_precision=None cannot be used"),
        ({"data_workers": -1}, "data_workers must be a whole number from 0 on"),
        ({"max_restarts": -1}, "max_restarts must be a whole number from 0 on"),
        ({"timeout": "soon"}, "timeout must be a number of seconds above 0"),
        ({"log_line_prefix_template": "${host}"}, "log_line_prefix_template='.*' is not understood"),
        ({"rdzv_backend": "etcd"}, "rdzv_backend is for torchelastic; here nodes meet at master_addr"),
        ({"rdzv_conf": {"join_timeout": 9}}, "rdzv_conf is for torchelastic"),
        ({"monitor_interval": 0}, "monitor_interval is for torchelastic"),
        ({"use_port": "70000"}, "use_port must be a port from 1 to 65535"),
        ({"use_port": 1, "master_port": 1}, "use_port and master_port are two names of one port"),
        ({"rdzv_endpoint": "h0:5"}, "rdzv_endpoint is for torchelastic"),
    ],
)
def test_bad_arguments(given: dict[str, Any], message: str) -> None:
    call = {"function": print, **given}
    with pytest.raises(UserError, match=message) as caught:
        notebook_launcher(**call)
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [f"cpudist: {caught.value}"]


def test_the_parameters_are_accelerates_in_its_order() -> None:
    import accelerate

    names = list(inspect.signature(accelerate.notebook_launcher).parameters)
    assert list(inspect.signature(notebook_launcher).parameters)[: len(names)] == names


def test_a_port_may_be_text() -> None:
    assert check(print, (), {**GIVEN, "use_port": "29501"}).master_port == 29501


def test_a_rank_starts_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BY_HAND.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="this process is a rank of env already"):
        notebook_launcher(print)


def test_ranks_are_numbered_over_the_nodes() -> None:
    settings = check(print, (), {**GIVEN, "num_nodes": 3, "node_rank": 1, "master_addr": "h0"})
    assert [settings.placement(one) for one in (0, 1)] == [Placement(2, 6, 0, 2, 1, 3), Placement(3, 6, 1, 2, 1, 3)]
