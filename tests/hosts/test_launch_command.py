"""`cpudist launch` on this host: what it shows, what it refuses, and one real job."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jobs
import pytest
from clocks import Clock
from launcher_variables import HYDRA

from cpudist.cli.launch import job_of
from cpudist.errors import UserError
from cpudist.findings import Finding
from cpudist.hosts import host_plan
from cpudist.hosts import run as module
from cpudist.hosts.check import Checked
from cpudist.hosts.facts import Facts
from cpudist.hosts.host_plan import HostPlan, LaunchOptions
from cpudist.hosts.hostfile import parse
from cpudist.hosts.run import Restarts
from cpudist.launchers import detect
from cpudist.launchers.intel_mpi import IntelMpi
from cpudist.launchers.mpi_launcher import Host, Mpirun


def test_inside_a_job() -> None:
    with pytest.raises(UserError, match="a rank of mpich already"):
        job_of({"arguments": ["train.py"]}, detect(HYDRA))


@pytest.mark.parametrize("flag", ["--checkpoint-on-signal", "--checkpoint_on_signal"])
def test_ranks_that_save_on_a_signal_are_known(flag: str) -> None:
    found = [job_of({"hosts": None, "arguments": words}, detect({})) for words in ([flag, "t.py"], ["t.py", flag])]
    assert [(job.script, job.saves) for job in found] == [("t.py", True), ("t.py", False)], "an option of the script"


def _facts(host: Host, sockets: int) -> Facts:
    ranks = {"socket": sockets, "numa": 2 * sockets, "l3": 8, "default": 2 * sockets}
    return Facts(host.name, {}, 8, 0.0, 1 << 40, True, ranks)


Plan = Callable[..., HostPlan]


@pytest.fixture
def plan_of(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plans whose check finds this."""

    def make(checked: Checked, hosts: list[Host] | None, **options: Any) -> HostPlan:
        monkeypatch.setattr(host_plan, "check_hosts", lambda *_, **__: checked)
        return HostPlan(LaunchOptions(hosts, ["t.py"], **options), IntelMpi)

    return make


def test_a_dry_run_names_the_interface_that_connects(plan_of: Plan) -> None:
    hosts = parse("h0\nh1\n")
    plan_of(Checked({host: _facts(host, 1) for host in hosts}, {}, "lo"), hosts)
    assert " --interface lo " in module.show(Mpirun(IntelMpi, Path("mpirun")), LaunchOptions(hosts, ["t.py"]))


def test_a_rank_for_each_part_of_each_host(plan_of: Plan) -> None:
    """Hosts may differ; the number of slots in the file is the upper bound."""
    hosts = parse("h0\nh1:8\nh2:1\n")
    checked = Checked({host: _facts(host, sockets) for host, sockets in zip(hosts, (1, 4, 1), strict=True)}, {})
    assert plan_of(checked, hosts[:2], per_host="numa").start() == [Host("h0", 2), Host("h1", 8)]
    with pytest.raises(UserError, match="line 3: h2 takes 1 ranks"):
        plan_of(checked, hosts, per_host="numa").start()
    assert plan_of(checked, hosts).start() == [Host("h0", 2), Host("h1", 8), Host("h2", 1)]


def test_on_this_host_only_a_part_is_asked_for(plan_of: Plan) -> None:
    here = Host("localhost", 3, "this host")
    nothing, checked = Checked({}, {}), Checked({replace(here, slots=None): _facts(here, 2)}, {})
    placed = plan_of(nothing, None, ranks=3).start()
    assert (placed, placed[0].where) == ([here], here.where)
    assert plan_of(nothing, None, ranks=3, per_host=4).start() == [here]
    assert plan_of(checked, None, per_host="socket").start() == [replace(here, slots=2)]
    assert plan_of(checked, None).start() == [replace(here, slots=4)]


def test_after_a_failure_other_hosts_step_in_or_the_job_shrinks(plan_of: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start alone waits for hosts."""
    waited: list[Any] = []
    monkeypatch.setattr(host_plan, "wait_for", lambda hosts, seconds: waited.append((hosts, seconds)))
    h0, h1, h2 = hosts = parse("h0:2\nh1:2\nh2:2\n")
    checked = Checked({}, {h1: [Finding("error", "h1", "does not answer", "see to it")]})
    plan = plan_of(checked, hosts, ranks=4, wait=5)
    assert plan.spread() == [h0, h1]
    assert plan.usable([]) == [h0, h2]
    assert plan.usable([h2]) == [h0]
    assert plan.restart([h0, h2]) == [h0, h2]
    assert plan.restart([h2]) == [h2]
    assert waited == []
    with pytest.raises(UserError, match=r"^h1 does not answer; see to it$"):
        plan.start()
    assert waited == [(hosts, 5)]


@pytest.fixture(autouse=True)
def _clock(clock: Clock) -> None:
    clock.drives(module)


def attempts(job: Restarts, clock: Clock, *seconds: float) -> list[bool]:
    """Let attempts fail after so many seconds, 10 s apart; return whether each is followed by another one."""
    goes_on = []
    for number in seconds:
        job.begin()
        clock.now += number
        goes_on.append(job.after_failure())
        clock.now += 10
    return goes_on


def test_restarts_come_later_and_later_and_those_of_long_ago_do_not_count(clock: Clock) -> None:
    """The fourth attempt was long. Two failures may be within a day; the last three are."""
    assert all(attempts(Restarts(9), clock, 1, 1, 1, 130, 1))
    assert clock.slept == [0, 5, 10, 0, 5]
    job, hour = Restarts(2), 3600
    assert attempts(job, clock, 12 * hour, 20 * hour, 12 * hour, 47 * hour, 10, 10) == [True] * 5 + [False]
    assert job.count == 5


def test_a_host_that_fails_twice_in_a_row_is_left_out() -> None:
    h0, h1, h2 = hosts = parse("h0:2\nh1:2\nh2:2\n")
    job, left_out = Restarts(9), []
    for suspect in (h1, h0, h1, h1, h2, h2):
        job.leave_out(suspect, hosts, least=2)
        left_out.append(list(job.left_out))
    assert left_out == [[], [], [], [h1], [h1], [h1]], "without h2 too few would be left"


@pytest.mark.job
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["launch", "--nproc", "2", "--all-output", "--", "--backend", "gloo"], ["[0] rank 0 of 2", "[1] rank 1 of 2"]),
        (["run", "--standalone", "--nnodes=1", "--nproc_per_node", "2", "--max-restarts", "1"], ["rank 0 of 2"]),
    ],
)
def test_an_unmodified_script_on_this_host(command: list[str], shown: list[str], tmp_path: Path) -> None:
    """Rank 0's output alone, and a line about the others', or each line marked with its rank, also one in pieces."""
    script = tmp_path / "says.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\ndist.init_process_group()\nones = torch.ones(1)\n"
        "dist.all_reduce(ones)\nfor part in ('rank', dist.get_rank(), 'of', int(ones), *sys.argv[1:]):\n"
        "    print(part, end=' ')\nprint()\n"
    )
    done = jobs.completed([str(jobs.BIN / "cpudist"), *command, str(script), "--all_output"], timeout=90)
    assert sorted(map(str.strip, done.stdout.splitlines())) == [f"{line} --all_output" for line in shown], done.output
    assert done.stderr.count("rank 1 on") == done.stderr.count("also prints: --all-output") == 2 - len(shown)


@pytest.mark.job
def test_ctrl_c_while_a_host_is_asked(tmp_path: Path) -> None:
    """The host does not answer: without Ctrl-C, `cpudist launch` waits 60 seconds. `jobs.run` sees that ssh ends."""
    asked, hosts, ssh = (tmp_path / name for name in ("asked", "hosts", "ssh"))
    hosts.write_text("nosuchhost:2\n")
    ssh.write_text(f"#!/bin/sh\ntouch {asked}\nexec sleep 1000\n")
    ssh.chmod(0o755)
    command = jobs.launch("--hostfile", str(hosts), "--", "train.py")
    path = f"{tmp_path}:{jobs.environment()['PATH']}"
    result = jobs.run(jobs.signalled(signal.SIGINT, asked, command), timeout=50, env={"PATH": path})
    assert result.returncode == 130, result.output
    assert "Traceback" not in result.output
