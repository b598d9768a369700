"""Options of a job are checked in one place, and a script keeps the number of threads that it has chosen.

tests/pinning has the masks.
"""

import os
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cpudist
from cpudist import job
from cpudist.changes import Changes
from cpudist.errors import UserError
from cpudist.job import job_options, rank_pinning
from cpudist.job.job_options import JobOptions

SCRIPT, VARIABLE = "torch.set_num_threads", "OMP_NUM_THREADS"


@pytest.mark.parametrize(
    ("given", "as_argument", "as_flag"),
    [
        ({"timeout": "soon"}, "timeout must be a number of seconds", "--timeout must be a number of seconds"),
        ({"stall": 0}, "stall must be a number of seconds", "--stall must be a number of seconds"),
        ({"compress": "zip"}, "compress='zip' is not known; give auto", "--compress zip is not known; give auto"),
        ({"steps": (3, 5)}, "--steps says which steps --timeline", "--steps says which steps --timeline"),
        ({"resume": "later"}, "resume='later' is not known; give auto or", "--resume later is not known; give auto or"),
    ],
)
def test_a_wrong_value_is_named_as_it_was_written(given: dict[str, Any], as_argument: str, as_flag: str) -> None:
    for from_flags, message in ((False, as_argument), (True, as_flag)):
        with pytest.raises(UserError) as raised:
            JobOptions(**given, from_flags=from_flags)
        assert str(raised.value).startswith(message)


def test_without_the_library_a_job_serves_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "find_spec", {"prometheus_client": None}.__getitem__)
    assert JobOptions().metrics_port is None
    with pytest.raises(UserError, match=r"pip install 'cpudist\[metrics\]'"):
        JobOptions(metrics_port=("127.0.0.1", 9400))


def test_values_of_a_command_line_are_converted_and_cross_processes() -> None:
    options: Any = JobOptions(timeout="9", stall="2.5")  # type: ignore[arg-type]
    assert (options.timeout, options.stall, options.resumes) == (9.0, 2.5, True)
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_script_fills_only_what_the_command_line_leaves_open() -> None:
    ours = JobOptions(compress="int8", timeout=9, from_flags=True)
    both = ours.filled_from(JobOptions(compress="bf16", resume="never", async_checkpoint=True, stall=5, timeout=3))
    assert both == JobOptions(
        compress="int8", timeout=9, from_flags=True, resume="never", async_checkpoint=True, stall=5
    )
    defaults = JobOptions(resume="auto", async_checkpoint=False, compress="none")
    assert defaults.filled_from(JobOptions(resume="never", async_checkpoint=True, compress="bf16")) == defaults


def test_later_calls_of_init_add_options(alone: None) -> None:
    running = job.require()
    assert (running.statuses().keys(), os.environ.get("GLOO_SOCKET_IFNAME")) == ({0}, None)
    cpudist.init(compress="powersgd", async_checkpoint=True, resume="never")
    assert (running.options.resumes, running.options.async_checkpoint) == (False, True)
    assert running.communication.compression == "powersgd"
    cpudist.init(compress="none", stall=60)
    assert running.communication.compression == "powersgd", "the first one holds"
    assert (running.options.stall, running._stall._seconds) == (60, 60)
    cpudist.init(stall=70)
    assert running._stall._seconds == 60


def test_a_backend_without_the_scheme_refuses_before_it_starts() -> None:
    with pytest.raises(UserError, match="gloo cannot compress gradients as compress='int8' says; use powersgd"):
        cpudist.init("gloo", pin=False, compress="int8")
    assert job.current() is None
    assert cpudist.init("gloo", pin=False).backend == "gloo"
    cpudist.shutdown()


@pytest.mark.parametrize(
    ("found", "given", "chosen"),
    [
        (8, None, None),  # torch's defaults: all CPUs, or all cores
        (4, None, None),
        (3, None, (3, SCRIPT)),
        (3, "3", None),
        (6, "8", (6, VARIABLE)),  # lowered by MKL to the machine's cores
        (5, "8", (5, SCRIPT)),
        (6, "5", (6, SCRIPT)),
    ],
)
def test_threads_that_the_script_has_chosen(
    found: int, given: str | None, chosen: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = SimpleNamespace(cpus=range(8), cores=range(4))
    machine = SimpleNamespace(usable=usable, topology=SimpleNamespace(cores=range(6)))
    monkeypatch.setattr(rank_pinning, "this_machine", lambda: machine)
    monkeypatch.setattr(rank_pinning, "decide", lambda *arguments: arguments)
    monkeypatch.setattr(torch, "get_num_threads", lambda: found)
    for name in rank_pinning.BINDING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    launcher: Any = "launcher"
    assert rank_pinning.decide_in_place(launcher) == ("launcher", sys.argv, chosen)
    monkeypatch.setenv(rank_pinning.BINDING[-1], "x")
    assert rank_pinning.decide_in_place(launcher) is None


@pytest.mark.parametrize("more", [0, 1])
def test_threads_of_a_pinning_until_the_job_ends(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "9")
    changes, before = Changes(), torch.get_num_threads()
    pinning: Any = SimpleNamespace(plan=SimpleNamespace(omp_threads=before + more), bind=lambda changes: changes)
    assert rank_pinning.apply_pinning(pinning, changes) is changes
    assert (torch.get_num_threads(), os.environ[VARIABLE]) == (before + more, str(before + more))
    changes.undo()
    assert (torch.get_num_threads(), os.environ[VARIABLE]) == (before, "9")
