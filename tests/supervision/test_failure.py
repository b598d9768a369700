"""A rank fails, and the job ends everywhere, soon, with the reason on screen once."""

import json
import re
import shlex
import uuid
from pathlib import Path

import pytest
from jobs import COMPLETED, STARTED, WAITING, Result, by_hand, mpirun, run, torchrun, train

from cpudist.errors import StartupTimeout, UserError
from cpudist.lost_ranks import JOB_ID, told
from cpudist.supervision import failure

# From its start to its end, when a rank fails at once: mostly `import torch`, on busy cores.
BOUND = 60.0

_SCRIPT = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from cpudist.errors import UserError
from cpudist.waiting import poll

def fail():
    {what}

if dist.get_rank() == 1:
    fail()
{others}
"""
_SLEEP = "time.sleep(300)"


def _script(folder: Path, what: str, others: str) -> str:
    path = folder / "script.py"
    path.write_text(_SCRIPT.format(what=what, others=others))
    return str(path)


def _record(folder: Path) -> str:
    return str(json.loads((folder / "record.json").read_text())["exit"])


def _job(folder: Path, backend: str, what: str, others: str, ranks: int = 2) -> Result:
    options = ["--backend", backend, "--record", str(folder / "record.json")]
    return run(mpirun(ranks, *train(*options, _script(folder, what, others))), timeout=BOUND)


@pytest.mark.job
def test_an_exception_ends_the_job_and_is_shown_once(tmp_path: Path) -> None:
    """Rank 0 waits in a collective, rank 2 in Python. See test_ends.py for gloo."""
    others = "dist.all_reduce(torch.ones(1)) if dist.get_rank() == 0 else time.sleep(300)"
    result = _job(tmp_path, "ccl", "raise ValueError('the reason')", others, ranks=3)
    assert result.returncode == 1, result.output
    assert result.stderr.count("Traceback (most recent call last)") == 1, result.output
    assert result.stderr.count("\nValueError: the reason\n") == 1, result.output
    line = next(line for line in result.report.splitlines() if line.startswith("cpudist: "))
    assert line.startswith("cpudist: rank 1 on ")
    assert line.endswith(" failed: ValueError: the reason; ending the job")
    assert "cpudist/cli" not in result.stderr, "the traceback shows the user's frames, not ours"
    assert _record(tmp_path) == "failed"


@pytest.mark.parametrize(
    ("error", "status", "report"),
    [
        (SystemExit(3), 3, "cpudist: rank 1 on h0 failed: exit status 3; ending the job\n"),
        (SystemExit("some words"), 1, "cpudist: rank 1 on h0 failed: some words; ending the job\n"),
        (SystemExit(256), 1, "cpudist: rank 1 on h0 failed: exit status 256; ending the job\n"),
        (UserError("cause; remedy"), 2, "cpudist: cause; remedy\n"),
        (StartupTimeout("rank 1 did not come"), 1, "cpudist: rank 1 did not come\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_other_ends_are_one_line(
    error: BaseException, status: int, report: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failure._report(error, lambda error: pytest.fail("no traceback"), "rank 1 on h0")
    assert (failure.exit_status(error), capsys.readouterr().err) == (status, report)


def test_a_long_error_is_not_printed_twice() -> None:
    error = SyntaxError("never closed", ("a.py", 3, 1, "x = ("))
    assert failure.describe(error) == "SyntaxError: never closed (a.py, line 3)"
    assert len(failure.describe(ValueError("x" * 1500))) == failure._LONGEST + 1


@pytest.mark.job
def test_an_interrupt_names_the_record_and_the_launcher_ends_with_the_ranks_status(tmp_path: Path) -> None:
    result = _job(tmp_path, "gloo", "raise KeyboardInterrupt", _SLEEP)
    assert result.returncode == 130, result.output
    assert re.fullmatch(r"cpudist: interrupted after .*; record in .*record\.json\n", result.report), result.output
    assert _record(tmp_path) == "interrupted"


@pytest.mark.job
def test_a_killed_rank_ends_the_others_and_is_named(tmp_path: Path) -> None:
    """No launcher ends them, as in pods; rank 0 has noticed a broken connection first, as gloo does in a call."""
    leave = "import tempfile; folder = tempfile.mkdtemp(); os.chdir(folder); os.rmdir(folder)"
    published = "from cpudist.job import require; poll(lambda: b'script.py' in require().store.get('status/1'), 30)"
    kill = f"{leave}; {published}; time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)"
    script = _script(tmp_path, kill, f"{published}; raise RuntimeError('Connection closed by peer')")
    result = run(by_hand(train("--backend", "ccl", Path(script).name)), timeout=BOUND, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "137 1", result.output
    lost = r"cpudist: rank 1 on \S+ ended without an error message .*; it was last in script\.py:\d+; ending the job\n"
    assert len(re.findall(lost, result.stderr)) == 1, result.output
    assert "closed by peer" not in result.stderr


@pytest.mark.job
def test_after_a_hang_the_rank_that_is_the_cause_is_named_last(tmp_path: Path) -> None:
    """`cpudist launch` is told, too."""
    path, job = tmp_path / "script.py", uuid.uuid4().hex
    path.write_text(
        "import time, torch, torch.distributed as dist\nfrom cpudist import job\n"
        "dist.all_reduce(torch.ones(1))\njob.require().set_timeout(4)  # the start may take longer\n"
        "time.sleep(300) if dist.get_rank() == 1 else dist.all_reduce(torch.ones(1))\n"
    )
    result = run(mpirun(2, *train("--backend", "ccl", str(path))), timeout=BOUND, env={JOB_ID: job})
    assert result.returncode == 1, result.output
    *_, last = (line for line in result.stderr.splitlines() if line.startswith("cpudist: "))
    cause = r"cpudist: rank 1 \(\S+\) never reached all_reduce #.*; it was last in script\.py:5; ending the job"
    assert re.fullmatch(cause, last), result.output
    assert "cpudist: rank 0" not in result.stderr, result.output
    assert told(job) == [1]


@pytest.mark.job
@pytest.mark.parametrize(
    ("transport", "end"), [("", ""), ("oneccl", ""), ("mpi-alone", "dist.destroy_process_group()")]
)
def test_uneven_batches_end_the_job_long_before_the_timeout(tmp_path: Path, transport: str, end: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import torch, torch.distributed as dist\n"
        "for batch in range(4 - dist.get_rank()):\n"
        "    dist.all_reduce(torch.ones(100))\n"
        f"{end}\n"
    )
    env = {"CPUDIST_TRANSPORT": transport} if transport else {}
    result = run(mpirun(2, *train("--backend", "ccl", "--timeout", "600", str(path))), timeout=BOUND, env=env)
    assert result.returncode != 0, result.output
    place = r"at the end of its script(, last in script\.py:\d)?"
    cause = rf"rank 1 \(\S+\) never reached all_reduce #\d+ \(400 B, script\.py:3\); it was {place}; "
    if end:  # MPI takes it for the other rank's all_reduce; the rank that sees it first reports it
        left = r"rank 1 has left the group \(destroy_process_group\), but rank 0 makes another call; .*"
        cause = rf"({left}|rank 0 on \S+ failed: .*rank 1 has sent 7 bytes .* ranks make different calls; .*)"
    assert re.search(f"^cpudist: {cause}ending", result.stderr, re.MULTILINE), result.output


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
@pytest.mark.parametrize(("backend", "ranks"), [("gloo", 3), ("ccl", 3), ("gloo", 1)])
def test_a_good_end_is_one_line_even_if_a_rank_is_late(tmp_path: Path, backend: str, ranks: int) -> None:
    result = _job(tmp_path, backend, "time.sleep(2)", "sys.exit(0)", ranks)
    assert result.returncode == 0, result.output
    written = re.sub(WAITING, "", result.stderr)
    assert re.fullmatch(STARTED + COMPLETED if ranks > 1 else "", written), result.output
    assert _record(tmp_path) == "completed"


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
