"""The command line of cpudist-train, as far as it goes before a job starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpudist.cli import train


def test_options_before_target_and_the_rest_untouched() -> None:
    words = "--backend gloo --timeout=7 run.py --backend x -m -- -h --timeout 9"
    options = train._parse(train._parser(), words.split())
    job_options = train._job_options(options)
    assert (job_options.backend, job_options.timeout, job_options.from_flags) == ("gloo", 7.0, True)
    assert (options.module, options.target, options.help) == (False, "run.py", False)
    assert options.args == ["--backend", "x", "-m", "--", "-h", "--timeout", "9"]
    options = train._parse(train._parser(), ["--record", "r.json", "-m", "package.module", "-m", "y"])
    assert train._job_options(options).record == Path("r.json")
    assert (options.module, options.target, options.args) == (True, "package.module", ["-m", "y"])


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(words) == 0
    text = capsys.readouterr().out
    for word in ("mpirun", "srun", "torchrun", "-m", "--record"):
        assert word in text
