"""All recipes: their names cost no import, and the commands at the heads of their files run as they stand there."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import run

from cpudist.training.recipes import RECIPES, script

_EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def _commands(recipe: str) -> str:
    """What stands indented in the docstring of a recipe, but for what installs packages."""
    docstring = importlib.import_module(f"cpudist.training.recipes.{recipe}").__doc__ or ""
    lines = [line[4:] for line in docstring.splitlines() if line.startswith("    ")]
    return "\n".join(line for line in lines if not line.startswith("pip install"))


@pytest.mark.job
def test_names_are_known_without_importing_what_takes_seconds() -> None:
    code = """
import sys
import cpudist.cli.train, cpudist.training.recipes
loaded = {"torch", "transformers", "datasets", "numpy"} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_command_at_the_head_has_options_that_exist(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(Exception):
        pass

    def begin(options: object, arguments: object) -> None:
        raise Parsed(arguments)

    monkeypatch.setattr(script, "begin", begin)  # where a recipe goes on once it has parsed its options
    words = shlex.split(_commands(recipe).replace("\\\n", " "))
    words = words[words.index("cpudist-train") + 1 :]
    assert words[0] == recipe
    with pytest.raises(Parsed) as parsed:
        importlib.import_module(f"cpudist.training.recipes.{recipe}").main([*words[1:], "--use_cpu"])
    arguments = parsed.value.args[0]
    assert (arguments.do_train, arguments.do_eval, arguments.output_dir) == (True, True, f"runs/{recipe}")


# In the other environments one command is enough: clm and qa have jobs of their own there, and classify and images run
# on xla.
_MARKED = [pytest.param(recipe, marks=pytest.mark.versions) if recipe == "mlm" else recipe for recipe in RECIPES]


@pytest.mark.job
@pytest.mark.parametrize("recipe", _MARKED)
def test_the_command_at_the_head_runs(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(_EXAMPLES)
    # More options of cpudist-train, which stands last.
    commands = f"{_commands(recipe)} --max_steps 2 --max_eval_samples 8"
    result = run(["bash", "-ec", commands], timeout=150, cwd=tmp_path)
    assert result.returncode == 0, result.output
    output = tmp_path / "runs" / recipe
    record = json.loads((output / "cpudist.json").read_text())
    assert (record["world_size"], record["steps"], record["exit"]) == (2, 2, "completed")
    assert record["results"]["sample"]
    assert "eval_loss" in json.loads((output / "eval_results.json").read_text())


@pytest.mark.parametrize("recipe", RECIPES)
def test_help_shows_the_command_as_it_is(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(f"cpudist.training.recipes.{recipe}").main(["--help"])
    out = capsys.readouterr().out
    assert re.search(rf"^    mpirun -n 2 cpudist-train {recipe} ", out, re.MULTILINE)
    assert "--max_train_samples" in out
