"""Figures and options as text, beside a progress bar."""

import sys

import pytest

from cpudist import console
from cpudist.console import curve, option
from cpudist.launchers import notebook


def test_the_curve_of_a_training_that_diverges() -> None:
    assert curve([3.0, 2.0, float("nan"), 4.0, float("inf")]) == "▅▁█"
    assert curve([float("nan")]) == curve([]) == ""


def test_an_option_is_written_as_its_user_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (option("backend", "gloo"), option("async_checkpoint")) == ("--backend gloo", "--async-checkpoint")
    monkeypatch.setenv(notebook.JOB, "job/0")
    assert option("backend", "gloo") == 'notebook_launcher(…, backend="gloo")'
    assert option("timeout") == "notebook_launcher(…, timeout=…)"


def test_a_line_does_not_share_that_of_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    with tqdm(total=2, file=sys.stderr, ncols=30):
        console.say("first")
    console.say("second")
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert {"cpudist: first", "cpudist: second"} <= {*lines}
