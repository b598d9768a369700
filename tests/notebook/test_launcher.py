"""`notebook_launcher` from plain Python and in cells of a real Jupyter kernel: real processes, real failures."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from jobs import completed, environment

pytestmark = pytest.mark.job

CHECKS = Path(__file__).with_name("checks")
SCRIPT = CHECKS / "launches.py"
HOST = socket.gethostname()


def launches(*words: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *words]


@pytest.mark.versions
def test_what_the_notebook_has_made_gets_there_and_back() -> None:
    """A closure, a class, a tensor. Trainer finds the job and its precision; each rank has its cores."""
    result = completed(launches("result"), timeout=150)
    # torch 2.8's gloo, which the notebook itself uses, prints a line.
    lines = [line for line in result.stdout.splitlines() if not line.startswith("[Gloo]")]
    assert lines[:2] == ["Launching training on 2 CPUs.", "rank 0 prints"], result.output
    assert "rank 1 prints" not in lines
    assert "rank 0 exits" in lines
    assert "rank 0 warns" in result.stderr
    assert "rank 1 warns" in result.stderr


def test_failures() -> None:
    """A rank's exception is raised with its traceback; a killed rank is named, and a restart succeeds.

    In the first job all ranks' output is shown with a prefix.
    """
    result = completed(launches("failures"), timeout=150)
    printed, caught, traceback, rest = result.stdout.split("\n\n", 3)
    assert sorted(printed.splitlines()[1:]) == ["[default0]: rank 0 prints", "[default1]: rank 1 prints"], result.output
    assert caught == f"caught it\ncpudist.notebook.result.RankFailed: rank 1 on {HOST} failed:"
    assert traceback.splitlines()[-1] == "Unlucky: no such thing", result.output
    assert 'raise Unlucky("no such thing")' in traceback
    assert "cpudist" not in traceback.replace(str(SCRIPT), ""), "frames of ours lead into the function"
    assert 'the job on ccl; notebook_launcher(…, backend="gloo") puts it on gloo\n' in result.stderr, result.output
    assert f"[default1]: cpudist: rank 1 on {HOST} failed: Unlucky: no such thing; ending the job\n" in result.stderr

    *runs, attempt = rest.splitlines()[-3:]
    assert attempt == "attempt 1", result.output
    assert (len(runs), len(set(runs)), runs[0][:4]) == (2, 1, "run "), result.output
    assert f"cpudist: rank 1 on {HOST} was killed by SIGKILL" in result.stderr
    assert "cpudist: starting again (1 of 1)" in result.stderr


def test_nothing_outlives_a_notebook_that_is_killed() -> None:
    process = subprocess.Popen(launches("sleep"), env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["Launching training on 2 CPUs.\n", "asleep\n"]
        ranks = psutil.Process(process.pid).children(recursive=True)
        assert sum(one.name() == "sleep" for one in ranks) == 2
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    _, alive = psutil.wait_procs(ranks, timeout=20)
    assert alive == []


def test_the_example_learns_in_a_kernel() -> None:
    result = completed([sys.executable, str(CHECKS / "execute.py"), "2"], timeout=170)
    found = re.search(r"2 processes, accuracy ([\d.]+)", result.stdout)
    assert found, result.output
    assert float(found[1]) > 0.8
    assert result.stdout.count("of 360 digits right") == 4, "rank 0 alone prints"
    assert len(re.findall(r"epoch 3: +\d+%", result.stderr)) > 1, "the progress bar is drawn as it goes"


FIGURE = """
from cpudist import notebook_launcher
from matplotlib import pyplot
# %%
def draw():
    pyplot.plot([1, 2])
    pyplot.show()
# %%
notebook_launcher(draw, num_processes=2)
"""


def test_a_figure_of_rank_0_is_shown(tmp_path: Path) -> None:
    (tmp_path / "cells.py").write_text(FIGURE)
    result = completed([sys.executable, str(CHECKS / "execute.py"), str(tmp_path / "cells.py")], timeout=170)
    assert result.stdout == "Launching training on 2 CPUs.\ndisplay_data of a picture\n", result.output


def test_an_interrupted_cell_leaves_nothing_and_the_next_one_works() -> None:
    result = completed([sys.executable, str(CHECKS / "interrupt_cells.py"), "1"], timeout=120)
    assert "1 interrupted cells left nothing" in result.stdout
