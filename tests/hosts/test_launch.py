"""`cpudist launch` over two hosts, and `doctor` and `stacks` with --hostfile."""

import json
import re
import signal
import threading
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN, launch, signalled
from mpis import MPIS, require

from cpudist.waiting import poll

pytestmark = pytest.mark.job

SCRIPT = Path(__file__).with_name("checks") / "greets.py"
# This host is temporarily called otherwise.
RENAMED = ["sh", "-c", 'hostname elsewhere; "$@"; status=$?; hostname h0; exit $status', "sh"]


def hostfile(folder: Path, text: str) -> str:
    path = folder / "hosts"
    path.write_text(text)
    return str(path)


def seen(folder: Path) -> dict[str, str]:
    """Who ran where: attempt and rank -> host."""
    return {path.name: path.read_text() for path in sorted(folder.glob("[0-9]-*"))}


@pytest.mark.parametrize("mpi", MPIS)
def test_a_killed_rank_is_named_and_the_job_restarts(bed: Bed, tmp_path: Path, mpi: str) -> None:
    """Five ranks, so one slot of h1 stays empty; rank 3 is killed in the first attempt. Only Intel MPI takes IPv6."""
    require(mpi)
    address = bed.addresses["h1"][mpi == "intel"]
    hosts = hostfile(tmp_path, f"h0:2  # first\n{address} slots=4\n")
    words = ["--hostfile", hosts, "--nproc", "5", "--mpi", mpi, "--max-restarts", "1"]
    command = launch(*words, "--", "--backend", "ccl", str(SCRIPT), str(tmp_path), "once", "3")
    result = bed.run("h0", command, timeout=180)
    assert result.returncode == 0, result.output
    ranks = dict(zip("01234", ("h0", "h0", "h1", "h1", "h1"), strict=True))
    assert seen(tmp_path) == {f"{attempt}-{rank}": host for attempt in "01" for rank, host in ranks.items()}
    assert result.stdout.count("rank 0 of 5 on h0\n") == 2, result.output
    assert "rank 1 of 5" not in result.stdout, result.output
    unequal = ("large allreduces bypass shared memory: hosts have 2 to 3 ranks", "of its cores for each rank")
    lines = [line for line in result.stderr.splitlines() if line.startswith("cpudist")]
    ours = [line for line in lines if not any(text in line for text in unequal)]
    assert f"cpudist: starting again (1 of 1) with 5 ranks on h0, {address}" in ours, result.output
    named = rf"(rank 3{'|a rank' * (mpi == 'mpich')}) on (h1|{re.escape(address)}) "  # by a rank or by launch
    assert any(re.search(named, line) for line in ours), result.output
    assert not any("warning" in line or "rank 0 on" in line for line in ours), result.output


@pytest.mark.parametrize("mpi", MPIS)
def test_what_a_dry_run_prints_runs_by_hand_also_with_many_arguments(bed: Bed, tmp_path: Path, mpi: str) -> None:
    """Shards given by a glob. A process that a rank starts does not get them."""
    require(mpi)
    script, more = tmp_path / "counts.py", [f"data/part {number:05}.tar" for number in range(2000)]
    child = "[sys.executable, '-c', 'import os; print(os.environ.get(\"CPUDIST_ARGUMENTS\"))']"
    script.write_text(
        "import os, socket, subprocess, sys, torch.distributed as dist\n"
        "dist.barrier()\n"
        f"got = subprocess.run({child}, capture_output=True, text=True).stdout.strip()\n"
        "print(socket.gethostname(), len(sys.argv), sys.argv[-1], got)\n"
    )
    words = ["--hostfile", bed.hostfile(1), "--all-output", "--mpi", mpi, "--dry-run"]
    printed = bed.run("h0", launch(*words, "--", "--backend", "gloo", str(script), *more), timeout=60)
    assert printed.returncode == 0, printed.output
    assert "part 01999" not in printed.stdout.splitlines()[-1].partition("mpi")[2]
    result = bed.run("h0", ["sh", "-c", printed.stdout], timeout=120, cwd=tmp_path)
    assert result.returncode == 0, result.output
    for host in ("h0", "h1"):
        assert f"{host} 2001 data/part 01999.tar None\n" in result.stdout, result.output


def test_all_hosts_troubles_come_at_once_and_before_any_rank(bed: Bed, tmp_path: Path) -> None:
    address = bed.addresses["h1"][0]
    hosts = hostfile(tmp_path, f"h0:2\nnosuchhost:2\nh1:2\n{address}:2\n10.77.0.99:2\n")
    result = bed.run("h0", launch("--hostfile", hosts, "--", str(SCRIPT), str(tmp_path)), timeout=60)
    assert result.returncode == 2, result.output
    assert "cpudist: checking 5 hosts: waiting for " in result.stderr, "10.77.0.99 takes three seconds"
    unknown, twice, unreachable = result.report.splitlines()
    assert "line 2: nosuchhost " in unknown
    assert f"line 4: {address} is the same machine as h1" in twice
    assert "line 5: 10.77.0.99 " in unreachable
    assert seen(tmp_path) == {}
    doctor = bed.run("h0", [str(BIN / "cpudist"), "doctor", "--hostfile", hosts, "--json"], timeout=60)
    assert doctor.returncode == 1, doctor.output
    found = [(one["about"].split()[-1], one["level"]) for one in json.loads(doctor.stdout)["findings"]]
    wrong = ["nosuchhost", address, "10.77.0.99"]
    assert found == [*((host, "error") for host in wrong), ("h0", "ok"), ("h1", "ok")], doctor.output


def test_waiting_for_hosts_has_an_end(bed: Bed, tmp_path: Path) -> None:
    """One host does not exist; the other cannot resolve this host's name."""
    hosts = hostfile(tmp_path, "h0:2\nnosuchhost:2\nh1:2\n")
    command = launch("--hostfile", hosts, "--wait", "1", "--", str(SCRIPT), str(tmp_path))
    result = bed.run("h0", [*RENAMED, *command], timeout=60)
    assert result.returncode == 2, result.output
    unknown, unknowing = result.report.splitlines()
    assert "line 2: nosuchhost " in unknown
    assert "line 3: h1 cannot resolve the name elsewhere" in unknowing
    assert seen(tmp_path) == {}


def test_hosts_by_address_that_do_not_know_this_hosts_name(bed: Bed, tmp_path: Path) -> None:
    """Hydra's processes connect to it by name, or by the address of an interface."""
    hosts = hostfile(tmp_path, "".join(f"{bed.addresses[host][0]}:1\n" for host in ("h0", "h1")))
    words = ["--hostfile", hosts, "--mpi", "intel", "--", "--backend", "gloo", str(SCRIPT), str(tmp_path)]
    result = bed.run("h0", [*RENAMED, *launch("--interface", "eth0", *words)], timeout=100)
    assert seen(tmp_path) == {"0-0": "elsewhere", "0-1": "h1"}, result.output


@pytest.mark.parametrize(("mpi", "number", "status"), [("intel", 15, 143), ("mpich", 2, 130), ("openmpi", 9, -9)])
def test_signals_end_everything(bed: Bed, tmp_path: Path, mpi: str, number: int, status: int) -> None:
    """After SIGKILL, which cannot be handled, the node agents clean up. `bed.run` checks that no process is left."""
    require(mpi)
    options = ["--hostfile", bed.hostfile(1), "--mpi", mpi, "--max-restarts", "3"]
    saves = ["--checkpoint-on-signal"] * (mpi == "intel")  # in Trainer's loop alone
    command = launch(*options, "--", *saves, str(SCRIPT), str(tmp_path), "hang", "0")
    result = bed.run("h0", signalled(number, tmp_path / "waiting", command), timeout=120)
    assert result.returncode == status % 256, result.output
    assert "starting again" not in result.stderr
    if number != 9:
        assert "killed, out of memory, or crashed?" not in result.stderr, result.output
        assert result.stderr.endswith(f"cpudist: the job was stopped by {signal.Signals(number).name}\n"), result.output


def test_a_lost_host_and_the_job_goes_on_without_it(own_bed: Bed, tmp_path: Path) -> None:
    words = ["--hostfile", own_bed.hostfile(2), "--max-restarts", "1", "--min-nodes", "1"]
    words += ["--", str(SCRIPT), str(tmp_path), "wait", "0"]

    def lose_h1() -> None:
        assert poll((tmp_path / "waiting").exists, 150)
        own_bed.kill("h1")

    breaker = threading.Thread(target=lose_h1, daemon=True)
    breaker.start()
    result = own_bed.run("h0", launch(*words), timeout=200)
    breaker.join(10)
    assert result.returncode == 0, result.output
    assert "h1 does not answer any more" in result.stderr or "h1 cannot be reached" in result.stderr, result.output
    assert "starting again (1 of 1) with 2 ranks on h0" in result.stderr
    assert {name: host for name, host in seen(tmp_path).items() if name.startswith("1-")} == {"1-0": "h0", "1-1": "h0"}


ASKS = """
import subprocess, sys, torch.distributed as dist
dist.barrier()
if dist.get_rank() == 0:
    for _ in range(20):  # gloo's calls are read once they have lasted for a second
        asked = subprocess.run([*sys.argv[1:]], capture_output=True, text=True)
        if "in barrier #2" in asked.stdout:
            break
    print(asked.stdout, asked.stderr, asked.returncode, sep="")
dist.barrier()
"""


def test_the_ranks_of_all_hosts_are_one_job(bed: Bed, tmp_path: Path) -> None:
    script, more, hosts = tmp_path / "asks.py", tmp_path / "more", bed.hostfile(1)
    script.write_text(ASKS)
    more.write_text("h0\nh1\nnowhere\n")
    ask = [str(BIN / "cpudist"), "stacks", "--hostfile"]
    job = launch("--hostfile", hosts, "--", "--backend", "gloo", str(script))
    shown = bed.run("h0", [*job, *ask, str(more)], timeout=120)
    lines = [line for line in shown.stdout.splitlines() if ": waiting for " not in line]  # told on a busy machine
    says = ["job of h0:", "rank 0 on h0 .* in asks.py:6", "rank 1 on h1 .* in barrier #2", ".*line 3: nowhere ", "2$"]
    assert all(map(re.match, says, lines)), shown.output
    assert len(lines) == len(says), shown.output
    none = bed.run("h0", [*ask, hosts], timeout=60)
    assert (none.returncode, none.stdout) == (2, ""), none.output
