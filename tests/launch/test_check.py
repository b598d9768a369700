"""Checking hosts: this one for real, under a wrong name, and what would be wrong with others."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cpudist.doctor import facts as on_host
from cpudist.hosts import check as module
from cpudist.hosts.check import Facts, check
from cpudist.hosts.remote import ask_all
from cpudist.launchers.mpi_launcher import Host

FACTS = Facts("a", "3.11.7", "0.1.0", "2.13.0", "", 0.0, 8 << 30, True, {"socket": 1, "numa": 2, "l3": 4})


@pytest.mark.job
def test_this_host_is_all_right() -> None:
    checked = check([Host("localhost", 1)], tries=True)
    assert checked.errors == []
    (facts,) = checked.facts.values()
    assert facts.skew == 0
    assert set(facts.ranks) == {"socket", "numa", "l3"}


@pytest.mark.job
def test_one_machine_under_two_names() -> None:
    (trouble,) = check([Host("localhost", 1, "f, line 1"), Host("127.0.0.1", 1, "f, line 2")]).errors
    assert str(trouble).startswith("f, line 2: 127.0.0.1 is the same machine as localhost; ")


@pytest.mark.job
@pytest.mark.parametrize(
    "says",
    [
        "",
        "welcome to h1",
        "null",
        "[1]",
        "{}",
        '{"seconds": null}',
        '{"seconds": 0.0, "cpudist": "0.0.9", "of": "another version"}',
    ],
)
def test_an_answer_that_is_not_understood(says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of cpudist may answer so."""
    monkeypatch.setattr(module, "_PROGRAM", f"print({says!r})".replace("{", "{{").replace("}", "}}"))
    (trouble,) = ask_all([Host("localhost", 1, "f, line 1")], module._ask)
    assert str(trouble) == (
        f"f, line 1: localhost gives an answer that is not understood: {says!r}; install the same cpudist on all hosts"
    )


@pytest.mark.job
def test_a_login_shell_may_greet_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROGRAM", "print('welcome to h1')\n" + module._PROGRAM)
    (facts,) = ask_all([Host("localhost", 1)], module._ask)
    assert isinstance(facts, Facts), facts


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch": "2.8.0"}, "error has torch 2.8.0, this host 2.13.0"),
        ({"torch": None}, "error has torch None"),
        ({"cpudist": "0.0.9"}, "error has cpudist 0.0.9"),
        ({"folder": False}, "error has no folder"),
        ({"failure": "cannot write to /scratch: Read-only file system"}, "error cannot write to /scratch: Read-only"),
        ({"memory": 100 << 20}, "error has 100 MB of free memory, and 4 ranks need 1.56 GB"),
        ({"skew": -120.0}, "warning has a clock that is -120 s off ours"),
        ({"ccl": "there is no C++ compiler"}, "warning cannot use the backend ccl"),
        ({}, ""),
    ],
)
def test_what_is_wrong_with_a_host(changes: dict[str, object], words: str) -> None:
    found = module._judge(Host("h1", 4), replace(FACTS, **changes), FACTS)
    assert " ".join(f"{one.level} {one.message}" for one in found).startswith(words)
    assert len(found) == bool(words)


@pytest.mark.job
def test_a_host_that_fails_the_trial_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        assert on_host.failure(str(tmp_path)) == f"cannot write to {tmp_path}: No space left on device"
    monkeypatch.setattr(on_host, "_RANK", "raise ValueError('a sum is wrong')")
    assert re.fullmatch(
        r"fails a collective of two processes \((ccl|gloo)\): ValueError: a sum is wrong",
        on_host.failure(str(tmp_path)),
    )
