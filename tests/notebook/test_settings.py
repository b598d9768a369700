"""Arguments of a cell, how cells of several nodes meet, and what comes back: output, a result or a failure."""

import inspect
import io
import math
import os
import socket
import sys
import threading
from dataclasses import replace
from typing import Any

import cloudpickle
import pytest
from clocks import Clock
from hypothesis import given
from hypothesis import strategies as st
from launcher_variables import BY_HAND

from cpudist import notebook_launcher
from cpudist.errors import StartupTimeout, UserError
from cpudist.job.job_options import JobOptions
from cpudist.launchers import Placement
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.ranks import Output
from cpudist.notebook.result import Failure, RankFailed, Result, ResultChannel
from cpudist.notebook.settings import Settings, checked
from cpudist.store import Address, Connection
from cpudist.store.process import StoreProcess
from cpudist.topology.identity import free_port

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


@pytest.mark.job
def test_cells_that_differ_or_have_one_number_are_named() -> None:
    place = {**GIVEN, "num_nodes": 2, "master_addr": "127.0.0.1", "use_port": free_port()}

    def cell(node: int, **given: Any) -> Nodes:
        return Nodes(checked(print, (), {**place, "node_rank": node, **given}))

    first = cell(0)
    with pytest.raises(UserError, match="num_nodes=3 in this node's cell, but 2 in node 0's"):
        cell(1, num_nodes=3)
    assert first.failure(0).said == "has num_nodes=3 in its cell, and node 0 2"
    first.close()
    first, second = cell(0), cell(1)
    with pytest.raises(UserError, match="a cell with node_rank=1 has joined the job at"):
        cell(1)
    second.report(0, Failure("the job", "was interrupted in another node's cell", 0.0, stopped=True))
    assert first.failure(0).stopped, "an interrupt of one cell ends the ranks of the others, and no restart follows"
    second.close()
    first.close()


HOST = socket.gethostname()


class Twofold(Exception):
    """Can be pickled and not unpickled: its __init__ takes two arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one + two)


def test_the_cause_comes_first() -> None:
    """A killed rank comes first even if others fail before its end is noticed. A rank that just ends comes last."""
    raised, killed = Failure("a", "", at=10.0), Failure("b", "", at=10.5, how="killed")
    late, ended = Failure("c", "", at=12.0, how="killed"), Failure("d", "", at=1.0, how="ended")
    assert sorted([ended, late, raised, killed], key=lambda one: one.order) == [killed, raised, late, ended]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("x"), ValueError, "^x$"),
        (UserError("x"), UserError, "^x$"),
        (SystemExit(3), RankFailed, f"^rank 1 on {HOST} failed:\n\nsaid$"),
        (Twofold(1, 2), RankFailed, f"^rank 1 on {HOST} failed:\n\nsaid$"),
    ],
)
def test_an_exception_comes_as_it_is_where_it_can(error: BaseException, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        Failure.of(1, error, "said").raise_here()


@pytest.mark.parametrize("text", ["", "[]", "null", "\0", '{"who": "a"}', '{"who": "a", "said": "b", "error": "x"}'])
def test_a_failure_that_another_version_reports_is_one_too(text: str) -> None:
    found = Failure.from_json(text)
    assert (found.error, found.mistake) == (None, False)
    own = Failure("rank 1", "failed", math.inf, "killed", b"pickled", mistake=True)
    assert replace(Failure.from_json(own.to_json()), at=math.inf) == replace(own, error=None)


@pytest.mark.job
def test_a_channel_is_shared_and_read_once() -> None:
    channel = ResultChannel()
    try:
        assert list(channel.received()) == []
        if (child := os.fork()) == 0:
            ResultChannel(channel.descriptor).publish(b"picture")
            ResultChannel(channel.descriptor).publish(Result([1, "two"]))
            os._exit(0)
        os.waitpid(child, 0)
        assert list(channel.received()) == [b"picture", Result([1, "two"])]
        with open(f"/proc/self/fd/{channel.descriptor}", "ab", buffering=0) as file:
            for byte in cloudpickle.dumps(Result("late")):  # a rank may be killed while it writes
                assert list(channel.received()) == []
                file.write(bytes([byte]))
        assert list(channel.received()) == [Result("late")]
        with pytest.raises(UserError, match=r"the function's result, of type lock, cannot be serialised"):
            channel.publish(Result(threading.Lock()))
    finally:
        channel.close()


def _shown(pieces: list[bytes], prefix: str | None, whole: bool) -> str:
    with pytest.MonkeyPatch.context() as patch:
        screen = io.StringIO(newline="")
        patch.setattr(sys, "stdout", screen)
        output = Output("stdout", prefix, whole)
        for piece in [*pieces, b""]:
            output.write(piece)
        return screen.getvalue()


@given(text=st.text(alphabet="aé\r\n", max_size=30), size=st.integers(1, 5))
def test_no_output_is_lost_or_changed_in_pieces_of_any_size(text: str, size: int) -> None:
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert _shown(pieces, None, False) == text
    assert _shown(pieces, "> ", True).replace("> ", "").removesuffix("\n") == text.removesuffix("\n")


def test_a_progress_bar_is_redrawn_behind_its_prefix() -> None:
    bar = [b"\r 10%", b"\r 20%", b"\r100%\n"]
    assert _shown(bar, "[1] ", True) == "\r[1]  10%\r[1]  20%\r[1] 100%\n"
