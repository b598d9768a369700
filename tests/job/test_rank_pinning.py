"""A script that calls `cpudist.init` keeps its number of threads; tests/pinning has the masks."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpudist.changes import Changes
from cpudist.job import rank_pinning

SCRIPT, VARIABLE = "torch.set_num_threads", "OMP_NUM_THREADS"


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
