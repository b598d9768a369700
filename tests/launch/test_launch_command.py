"""`cpudist launch` on this host: what it shows, what it refuses, and one real job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
from jobs import BIN

from cpudist.cli.main import main
from cpudist.errors import Finding, UserError
from cpudist.hosts import restarts
from cpudist.hosts import run as module
from cpudist.hosts.check import Checked, Facts
from cpudist.hosts.hostfile import parse
from cpudist.hosts.run import LaunchOptions
from cpudist.hosts.supervise import JobExit
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import Host, Mpirun

MPIRUN = Mpirun(IntelMpi, Path("mpirun"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no TARGET"),
        (["--ppn", "0", "--", "t.py"], "give a number of ranks from 1 to 10000, socket, numa or l3, not '0'"),
        (["--nproc", "two", "--", "t.py"], "give a whole number from 1 on, not 'two'"),
        (["--min-nodes", "2", "--", "t.py"], "--max-restarts"),
        (
            ["--timeout", "20", "--", "t.py"],
            "launch has no option --timeout; if it is an option of cpudist-train, write it",
        ),
        (
            ["--timeout=20", "--", "t.py"],
            "no option --timeout; if it is an option of cpudist-train, write it after",
        ),
        (["--mpi", "lam", "--", "t.py"], "invalid choice: 'lam'"),
        (["--hostfile", "/no/such/file", "--", "t.py"], "cannot read the hostfile /no/such/file"),
    ],
)
def test_wrong_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.job
def test_ranks_that_do_not_fit_are_found_before_any_host_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hosts"  # these have no address
    path.write_text("h0:2\nh1:2\n")
    assert main(["launch", "--hostfile", str(path), "--nproc", "5", "--", "train.py"]) == 2
    assert "5 ranks do not fit on 2 hosts with room for 4" in capsys.readouterr().err


def test_inside_a_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["launch", "--", "train.py"]) == 2
    assert "is a rank of mpich already" in capsys.readouterr().err


def _ranks(sockets: int) -> dict[str, int]:
    return {"socket": sockets, "numa": 2 * sockets, "l3": 8, "default": 2 * sockets}


def test_a_rank_for_each_part_of_each_host() -> None:
    """Hosts may differ; the number of slots in the file is the upper bound."""
    hosts = parse("h0\nh1:8\nh2:1\n")
    facts = {
        host: Facts(
            host.name,
            "3",
            "0",
            "2",
            "",
            0.0,
            1 << 40,
            True,
            _ranks(sockets),
        )
        for host, sockets in zip(hosts, (1, 4, 1), strict=True)
    }
    checked = Checked(facts, {})
    placed = module._spread(LaunchOptions(hosts[:2], ["t.py"], per_host="numa"), hosts[:2], checked)
    assert placed == [Host("h0", 2), Host("h1", 8)]
    with pytest.raises(module.UserError, match="line 3: h2 takes 1 ranks, and --ppn numa makes 2"):
        module._spread(LaunchOptions(hosts, ["t.py"], per_host="numa"), hosts, checked)
    assert module._spread(LaunchOptions(hosts, ["t.py"]), hosts, checked) == [
        Host("h0", 2),
        Host("h1", 8),
        Host("h2", 1),
    ]


def test_after_a_failure_other_hosts_step_in_or_the_job_shrinks() -> None:
    hosts = parse("h0:2\nh1:2\nh2:2\n")
    options = LaunchOptions(hosts, ["train.py"], ranks=4)
    h0, h1, h2 = hosts
    checked = Checked({}, {h1: [Finding("error", "h1", "does not answer", "see to it")]})
    assert module._spread(options, hosts) == [h0, h1]
    assert module._answering(hosts, checked) == [h0, h2]
    assert module._as_many_as_fit(options, [h0, h2], checked) == [h0, h2]
    assert module._as_many_as_fit(options, [h2], checked) == [h2]


class Attempts:
    """What each attempt at a job returns or raises, and when: begin and end of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hosts: list[Host], outcomes: list[Any], clock: list[float]):
        self.slept: list[float] = []
        self.placed: list[str] = []
        self.lost: list[int] = []  # the number of hosts that do not answer, for each check
        self._outcomes, times = iter(outcomes), iter(clock)
        time = SimpleNamespace(monotonic=lambda: next(times), sleep=self.slept.append)
        monkeypatch.setattr(module, "_run_once", self._attempt)
        monkeypatch.setattr(module, "_place", lambda *_: hosts)
        monkeypatch.setattr(module, "check", self._check)
        monkeypatch.setattr(restarts, "time", time)

    def _attempt(self, mpirun: object, options: object, placed: list[Host], *_: object) -> JobExit:
        self.placed.append(" ".join(host.name for host in placed))
        outcome = next(self._outcomes)
        if isinstance(outcome, UserError):
            raise outcome
        return outcome

    def _check(self, hosts: list[Host], script: str, by_name: bool) -> Checked:
        lost = hosts[: self.lost.pop(0)] if self.lost else []
        return Checked({}, {host: [Finding("error", host.name, "does not answer", "see to it")] for host in lost})


def test_restarts_come_later_and_later_also_where_a_host_is_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = [JobExit(1), UserError("h1 is slow"), JobExit(1), JobExit(1), JobExit(0)]
    clock = [0, 1, 10, 11, 20, 21, 100, 230, 2000]  # the fourth is long
    hosts = [Host("h0", 1)]
    attempts = Attempts(monkeypatch, hosts, outcomes, clock)
    assert module.run(MPIRUN, LaunchOptions(hosts, ["train.py"], max_restarts=4)) == 0
    assert attempts.slept == [0, 5, 10, 0]
    assert "the job failed: h1 is slow (exit status 1)" in capsys.readouterr().err


def test_failures_of_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two may be within 100 s; the last three are."""
    hosts = [Host("h0", 1)]
    attempts = Attempts(monkeypatch, hosts, [JobExit(1)] * 6, [0, 50, 60, 140, 150, 200, 210, 400, 410, 420, 430, 440])
    assert module.run(MPIRUN, LaunchOptions(hosts, ["train.py"], max_restarts=2, restart_window=100)) == 1
    assert len(attempts.placed) == 6
    said = capsys.readouterr().err
    assert "starting again (2 of 2)" in said
    assert said.endswith("not starting again: 3 failures within 100 s (--max-restarts 2, --restart-window)\n")


def test_a_host_that_fails_twice_in_a_row_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = parse("h0:2\nh1:2\nh2:2\n")
    outcomes = [JobExit(1, suspect=hosts[index]) for index in (1, 0, 1, 1, 2, 2)]
    attempts = Attempts(monkeypatch, hosts, [*outcomes, JobExit(0, output_lost=True)], list(range(13)))
    options = LaunchOptions(hosts, ["train.py"], max_restarts=9, min_nodes=2)
    assert module.run(MPIRUN, options) == 1, "output was lost"
    assert attempts.placed == ["h0 h1 h2"] * 4 + ["h0 h2"] * 3
    said = capsys.readouterr().err
    assert said.count("warning: going on without hostfile, line 2: h1, which failed twice in a row\n") == 1
    assert said.count("h2 failed twice in a row, and stays: without it 1 hosts are left (--min-nodes 2)\n") == 1


@pytest.mark.parametrize(("most", "status", "slept"), [(4, 0, [0, 5, 10]), (2, 7, [0, 5])])
def test_hosts_that_are_away_for_a_moment_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most: int, status: int, slept: list[float]
) -> None:
    hosts = parse("h0:2\nh1:2\n")
    attempts = Attempts(monkeypatch, hosts, [JobExit(7), JobExit(0)], list(range(9)))
    attempts.lost = [2, 1]
    assert module.run(MPIRUN, LaunchOptions(hosts, ["train.py"], max_restarts=most)) == status
    assert attempts.slept == slept
    said = capsys.readouterr().err
    assert "cpudist: 0 of 2 hosts can be used, fewer than 2 (--min-nodes)\n" in said
    assert "cpudist: 1 of 2 hosts can be used, fewer than 2 (--min-nodes)\n" in said
    assert said.endswith(
        "starting again (3 of 4) with 4 ranks on h0, h1\n"
        if status == 0
        else "not starting again: 3 failures within 86400 s (--max-restarts 2, --restart-window)\n"
    )


@pytest.mark.job
def test_a_job_on_this_host(tmp_path: Path) -> None:
    script = tmp_path / "says.py"
    script.write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])\nsys.exit(int(sys.argv[1]))\n")
    command = [str(BIN / "cpudist"), "launch", "--nproc", "2", "--", "--backend", "gloo", str(script)]
    done = jobs.run([*command, "0", "--all_output"], timeout=90)
    assert done.returncode == 0, done.output
    assert done.stdout == "rank 0 ['0', '--all_output']\n"


@pytest.mark.job
def test_output_of_all_ranks_is_marked(tmp_path: Path) -> None:
    script = tmp_path / "says.py"
    script.write_text("import os\nfor part in ('I', 'am', os.environ['RANK']):\n    print(part, end=' ')\nprint()\n")
    command = [str(BIN / "cpudist"), "launch", "--nproc", "2", "--all-output", "--", "--backend", "gloo", str(script)]
    done = jobs.run(command, timeout=90)
    assert sorted(line.strip() for line in done.stdout.splitlines()) == ["[0] I am 0", "[1] I am 1"], done.output


@pytest.mark.job
def test_help_has_no_wall(capsys: pytest.CaptureFixture[str]) -> None:
    """--help is shown without importing torch."""
    ask = "import sys; from cpudist.cli.main import main\n"
    ask += "try: main(['launch', '--help'])\nfinally: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("False\n")
    assert "cpudist launch --hostfile hosts --ppn 2 --mpi openmpi --dry-run -- train.py" in done.stdout


CTRL_C = """
import pathlib, signal, subprocess, sys, time
asked = pathlib.Path(sys.argv[1])
launch = subprocess.Popen(sys.argv[2:])
while not asked.exists():
    time.sleep(0.05)
launch.send_signal(signal.SIGINT)
sys.exit(launch.wait(50))
"""


@pytest.mark.job
def test_ctrl_c_while_a_host_is_asked(tmp_path: Path) -> None:
    """The host does not answer: without Ctrl-C, `cpudist launch` waits 60 seconds. `jobs.run` sees that ssh ends."""
    asked, hosts, ssh = (tmp_path / name for name in ("asked", "hosts", "ssh"))
    hosts.write_text("nosuchhost:2\n")
    ssh.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 1000\n")
    ssh.chmod(0o755)
    command = [str(BIN / "cpudist"), "launch", "--hostfile", str(hosts), "--", "train.py"]
    path = f"{tmp_path}:{jobs.environment()['PATH']}"
    result = jobs.run([sys.executable, "-c", CTRL_C, str(asked), *command], timeout=90, env={"PATH": path})
    assert result.returncode == 130, result.output
    assert "Traceback" not in result.output
