"""A rank fails, and the job ends everywhere, soon, with the reason on screen once. See also test_uses.py."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from jobs import mpirun, run, torchrun, train

from cpudist.errors import StartupTimeout, UserError
from cpudist.supervision import failure
from cpudist.supervision.watch import RanksMissing

# From its start to its end, when a rank fails at once: mostly `import torch`, on busy cores.
BOUND = 60.0

_SCRIPT = """
import time
import torch.distributed as dist

if dist.get_rank() == 1:
    {what}
{others}
"""
_SLEEP = "time.sleep(300)"


def _script(folder: Path, what: str, others: str) -> str:
    path = folder / "script.py"
    path.write_text(_SCRIPT.format(what=what, others=others))
    return str(path)


def _record(folder: Path) -> str:
    return str(json.loads((folder / "record.json").read_text())["exit"])


@pytest.mark.parametrize(
    ("error", "status", "report"),
    [
        (SystemExit(3), 3, "cpudist: rank 1 on h0 failed: exit status 3; ending the job\n"),
        (SystemExit("some words"), 1, "cpudist: rank 1 on h0 failed: some words; ending the job\n"),
        (SystemExit(256), 1, "cpudist: rank 1 on h0 failed: exit status 256; ending the job\n"),
        (UserError("cause; remedy"), 2, "cpudist: cause; remedy\n"),
        (StartupTimeout("rank 1 did not come"), 1, "cpudist: rank 1 did not come\n"),
        (RanksMissing("rank 0 has not ended"), 1, "cpudist: rank 0 has not ended; ending the job\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_ends_of_one_line(error: BaseException, status: int, report: str, capsys: pytest.CaptureFixture[str]) -> None:
    failure._report(error, lambda error: pytest.fail("no traceback"), "rank 1 on h0")
    assert (failure.exit_status(error), capsys.readouterr().err) == (status, report)


def test_a_long_error_is_not_printed_twice() -> None:
    error = SyntaxError("never closed", ("a.py", 3, 1, "x = ("))
    assert failure.describe(error) == "SyntaxError: never closed (a.py, line 3)"
    assert len(failure.describe(ValueError("x" * 1500))) == failure._LONGEST + 1


@pytest.mark.job
def test_the_launcher_ends_with_the_status_of_an_interrupt(tmp_path: Path) -> None:
    options = ["--backend", "gloo", "--record", str(tmp_path / "record.json")]
    result = run(mpirun(2, *train(*options, _script(tmp_path, "raise KeyboardInterrupt", _SLEEP))), timeout=BOUND)
    assert result.returncode == 130, result.output
    assert re.fullmatch(r"cpudist: interrupted after .*; record in .*record\.json\n", result.report), result.output
    assert _record(tmp_path) == "interrupted"


@pytest.mark.job
def test_under_torchrun_the_failed_rank_is_blamed(tmp_path: Path) -> None:
    script = _script(tmp_path, "raise ValueError('the reason')", _SLEEP)
    options = ["--backend", "gloo", "--record", str(tmp_path / "record.json")]
    result = run(torchrun(2, "--no-python", *train(*options, script)), timeout=BOUND)
    assert result.returncode == 1, result.output
    assert result.stderr.count("\nValueError: the reason\n") == 1, result.output
    _, _, root_cause = result.stderr.partition("Root Cause")
    assert "rank      : 1 " in root_cause, result.output
    assert _record(tmp_path) == "failed"


@pytest.mark.job
def test_a_job_ends_also_where_nothing_can_be_written(tmp_path: Path) -> None:
    script = _script(tmp_path, "print('x', flush=False); raise ValueError('the reason')", _SLEEP)
    command = shlex.join(mpirun(2, "sh", "-c", shlex.join(train("--backend", "gloo", script)) + " >/dev/full 2>&1"))
    result = run(["bash", "-c", command], timeout=BOUND)
    assert result.returncode != 0, result.output


@pytest.mark.job
def test_user_errors_before_the_start_are_one_line_of_one_rank(tmp_path: Path) -> None:
    result = run(mpirun(2, *train("--backend", "nonsense", _script(tmp_path, "pass", ""))), timeout=BOUND)
    assert (result.returncode, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1, result.output


@pytest.mark.job
def test_a_rank_of_a_plain_script_that_ends_too_early_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "script.py").write_text(
        "import cpudist, torch\nrank = cpudist.init('ccl').rank\nfor _ in range(9 - rank):\n"
        "    torch.distributed.all_reduce(torch.ones(1))\n"
    )
    result = run(mpirun(2, sys.executable, str(path)), timeout=BOUND)
    never = r"cpudist: rank 1 \(\S+\) never reached all_reduce #9 .*; it was at the end of its script.*; ending the job"
    assert re.fullmatch(never, result.report.strip()), result.output
