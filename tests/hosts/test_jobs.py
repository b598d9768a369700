"""Jobs over two hosts: under each MPI's own mpirun, from other login shells, and from notebooks."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN, Result, launch, train
from mpis import mpirun, mpirun_on, named, require

from cpudist.compiler import build_folder

pytestmark = pytest.mark.job

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = TESTS / "huggingface" / "checks" / "course.py"
COLLECTIVES = TESTS / "backends" / "ccl" / "checks" / "collectives.py"
GREETS = Path(__file__).with_name("checks") / "greets.py"
EXECUTE = TESTS / "notebook" / "checks" / "execute.py"
LAUNCHES = Path(__file__).with_name("checks") / "nodes.py"
# ssh hands no variables on.
VARIABLES = {
    "CPUDIST_CACHE": str(build_folder()),
    **{name: os.environ.get(name, "") for name in ("PATH", "PYTHONPATH")},
}


# oneCCL speaks the MPICH ABI; under Open MPI it uses libfabric.
@pytest.mark.parametrize(
    ("mpi", "backend", "transport"),
    [
        ("intel", "ccl", "mpi"),
        pytest.param("intel", "gloo", "tcp", marks=pytest.mark.long),
        ("mpich", "ccl", "mpi"),
        ("openmpi", "ccl", "ofi"),
    ],
)
def test_the_documented_command(bed: Bed, tmp_path: Path, mpi: str, backend: str, transport: str) -> None:
    """A script of Trainer's on 2 hosts x 2 ranks; it fails unless all ranks end with the same parameters."""
    record = tmp_path / "record.json"
    options = ["--do_train", "--max_steps", "8", "--logging_steps", "1", "--learning_rate", "1e-2"]
    options += ["--no_cuda", "--ddp_backend", backend, "--use_ipex", "--bf16"]
    options += ["--report_to", "none", "--disable_tqdm", "true", "--save_strategy", "no"]
    compressed = (mpi, backend) == ("intel", "ccl")
    options += ["--ddp_compress", "int8"] if compressed else []
    script = train("--backend", backend, "--record", str(record), str(SCRIPT), "--output_dir", str(tmp_path), *options)
    result = bed.run("h0", [*mpirun_on(bed, mpi, 2), *script], timeout=240)
    assert result.returncode == 0, result.output
    carriers = f"shared memory and {transport}" if backend == "ccl" else transport
    assert f" on h0, h1, {backend} over {carriers}, started in " in result.stderr
    fields = json.loads(record.read_text())
    assert fields["launcher"] == named(mpi).name
    assert fields["hosts"] == ["h0", "h1"]
    assert (fields["world_size"], fields["backend"], fields["transport"]) == (4, backend, transport)
    assert (fields["steps"], fields["exit"]) == (8, "completed")
    # --use_ipex lets a measurement of the link choose.
    assert fields["gradients"]["compress"] in ({"int8"} if compressed else {"none", "bf16"})
    assert fields["loss"]["last"] < fields["loss"]["first"]


@pytest.mark.parametrize("mpi", ["intel", pytest.param("mpich", marks=pytest.mark.long), "openmpi"])
def test_every_collective_across_hosts(bed: Bed, mpi: str) -> None:
    command = [*mpirun_on(bed, mpi, 1), sys.executable, str(COLLECTIVES), "15"]
    result = bed.run("h0", command, timeout=240, env={"PYTHONWARNINGS": "ignore"})
    assert result.returncode == 0, result.output
    said = "collectives passed on World(rank=0(2), local_rank=0(1), node=0(2), backend='ccl'"
    assert said in result.stdout, result.output


_SUMS = """
import cpudist, torch
from cpudist.backends.ccl import extension
world = cpudist.init()
ones = torch.ones(1 << 20)
torch.distributed.all_reduce(ones)
assert ones.eq(3).all()
print(extension.load().sums, flush=True)
cpudist.shutdown()
"""


@pytest.mark.parametrize(
    ("given", "sums"),
    [
        ("  ", ["direct:0-262143;ring:262144-max"] * 3),
        pytest.param(" 2d ", ["2d"] * 3, marks=pytest.mark.long),
        pytest.param("ring 2d ", [], marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("own_bed", [3], indirect=True)
def test_three_hosts_add_up_in_rings(own_bed: Bed, given: str, sums: list[str]) -> None:
    """All ranks use an algorithm that the user has chosen on one of them; with different ones they would hang."""
    ranks = [["-n", "1", "-host", host, sys.executable, "-c", _SUMS] for host in own_bed.addresses]
    for rank, value in zip(ranks, given.split(" "), strict=True):
        rank[2:2] = ["-env", "CCL_ALLREDUCE", value] if value else []
    command = mpirun("intel") + [word for rank in ranks for word in [":", *rank]][1:]
    result = own_bed.run("h0", command, timeout=120)
    assert result.stdout.split() == sums, result.output
    assert bool(sums) != ("CCL_ALLREDUCE differs between ranks (2d, ring)" in result.stderr), result.output


@pytest.mark.parametrize(
    ("hosts", "transport"), [("h0 h0 h1 h1", "ofi"), ("h0 h0 h0 h1", "mpi"), ("h0 h1 h0 h1", "mpi")]
)
def test_unequal_shares(bed: Bed, hosts: str, transport: str) -> None:
    """Shares from none to a million times as much on 2 + 2, 3 + 1 and round-robin ranks."""
    ranks = [["-n", "1", "-host", host, sys.executable, str(COLLECTIVES), "5"] for host in hosts.split()]
    command = mpirun("intel") + [word for rank in ranks for word in [":", *rank]][1:]
    variables = {"CPUDIST_TEST_ONLY": "unequal", "CCL_ATL_TRANSPORT": transport}
    result = bed.run("h0", command, timeout=240, env={"PYTHONWARNINGS": "ignore", **variables})
    assert result.returncode == 0, result.output
    assert "collectives passed on World(rank=0(4)" in result.stdout, result.output
    unequal = "warning: large allreduces bypass shared memory: hosts have 1 to 3 ranks"
    assert (unequal in result.stderr) == (hosts == "h0 h0 h0 h1"), result.output


def test_what_spares_the_network_is_measured_on_it(bed: Bed, tmp_path: Path) -> None:
    """`bench hosts` compares compressed gradients with a step without communication."""
    kept = tmp_path / "hosts.json"
    words = ["bench", "hosts", "--quick", "--json", str(kept), "--only", "bf16", "--only", "gloo"]
    command = [*mpirun_on(bed, "intel", 1), str(BIN / "cpudist"), *words]
    result = bed.run("h0", command, timeout=240)
    assert result.returncode == 0, result.output
    (entry,) = json.loads(kept.read_text())["results"]
    calls = {name: timings["calls_per_round"] for name, timings in entry["seconds"].items()}
    assert calls == {"no communication": 1, "bf16": 1, "gloo": 1}


# What each shell reads when sshd starts it for one command.
FIRST_FILES = {"bash": ".bashrc", "zsh": ".zshenv", "fish": ".config/fish/config.fish", "csh": ".cshrc"}


@pytest.mark.parametrize(("shell", "mpi"), [("bash", "intel"), ("zsh", "intel"), ("csh", "mpich"), ("fish", "openmpi")])
def test_another_login_shell_and_home(own_bed: Bed, tmp_path: Path, shell: str, mpi: str) -> None:
    """The shell greets, also in JSON; names have spaces."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    require(mpi)
    home, here = tmp_path / "its home", tmp_path / "my files"
    here.mkdir()
    (home / FIRST_FILES[shell]).parent.mkdir(parents=True)
    (home / FIRST_FILES[shell]).write_text("echo Welcome\necho '{\"answer\": 1}'\n")
    users = tmp_path / "passwd"
    users.write_text(f"root:x:0:0:root:{home}:{program}\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")
    own_bed.run("h1", ["mount", "--bind", str(users), "/etc/passwd"], timeout=60)
    hosts = ["--hostfile", own_bed.hostfile(1), "--mpi", mpi]
    command = launch(*hosts, "--", "--backend", "gloo", str(GREETS), str(here))
    path = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    result = own_bed.run("h0", command, timeout=120, env=path, cwd=here)
    assert result.returncode == 0, result.output
    assert {path.name: path.read_text() for path in here.iterdir()} == {"0-0": "h0", "0-1": "h1"}, result.output


def on_both(bed: Bed, script: Path, *words: str) -> Result:
    """Run a script on h0 and, a moment earlier, on h1, whose output is on standard error; NODE is its host's number."""
    first, second = ([sys.executable, str(script), *" ".join(words).replace("NODE", node).split()] for node in "01")
    there = ["env", f"--chdir={Path.cwd()}", *(f"{name}={value}" for name, value in VARIABLES.items()), *second]
    over_ssh = f"ssh h1 {shlex.quote(shlex.join(there))} >&2"
    command = ["sh", "-c", f"{over_ssh} & {shlex.join(first)}; status=$?; wait; exit $status"]
    result = bed.run("h0", command, timeout=240, env=VARIABLES)
    assert result.returncode == 0, result.output
    return result


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_notebook_of_the_examples_on_two_nodes(bed: Bed, processes: int) -> None:
    result = on_both(bed, EXECUTE, str(processes), "2", "NODE", "h0")
    found = re.search(rf"{2 * processes} processes, accuracy ([\d.]+)", result.stdout)
    assert found, result.output
    assert float(found[1]) > 0.75


def test_a_failure_on_one_node_is_shown_on_both_and_restarts_go_on(bed: Bed) -> None:
    """The second launch starts as soon as the first one has ended on its node."""
    result = on_both(bed, LAUNCHES, "NODE")
    assert "raises RankFailed rank 1 on h1 failed:\n" in result.stdout, result.output
    assert "ValueError: no such thing" in result.stdout
    assert "raises ValueError no such thing" in result.stderr
    assert "gives ranks 2, attempt 1\n" in result.stdout, result.output
    assert "gives None\n" in result.stderr
