"""The command line of cpudist-train, as far as it goes before a job starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from launcher_variables import HYDRA

from cpudist.cli import train
from cpudist.errors import UserError


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


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--bakend", "gloo", "run.py"], "--bakend"),
        (["--timeout", "soon", "run.py"], "--timeout must be a number of seconds above 0, not 'soon'"),
        (["--timeout", "-3", "run.py"], "above 0"),
        (["--backend", "gloo"], "no TARGET"),
        (["--compress", "zip", "run.py"], "--compress zip is not known; give auto, none, bf16"),
        (["--data-workers", "-1", "x.py"], "give a whole number from 0 on, not '-1'"),
    ],
)
def test_wrong_options_say_what_and_where_to_look(words: list[str], part: str) -> None:
    with pytest.raises(UserError, match=part):
        train._job_options(train._parse(train._parser(), words))


def test_wrong_target_is_one_line_of_rank_0_and_status_2(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train.main(["nonsense"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the path of a script, or -m and a module" in err
    for name, value in HYDRA.items():  # of rank 1
        monkeypatch.setenv(name, value)
    assert train.main(["nonsense"]) == 2
    assert train.main(["--help"]) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_teaches(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(words) == 0
    text = capsys.readouterr().out
    for word in ("mpirun", "srun", "torchrun", "-m", "--record"):
        assert word in text


@pytest.mark.job
def test_missing_packages_are_found_before_the_backend_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import no_such_package\n")
    command = ["cpudist-train", str(tmp_path / "script.py")]
    env = os.environ | {"CPUDIST_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"cpudist: {tmp_path}/script.py imports no_such_package, not installed"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "cache").exists()
