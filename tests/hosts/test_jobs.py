"""Training and collectives over two hosts, started over ssh by each MPI as its documentation says."""

import json
import sys
from pathlib import Path

import pytest
from bed import Bed
from jobs import train
from mpis import mpirun, mpirun_on, named

pytestmark = pytest.mark.job

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = TESTS / "huggingface" / "checks" / "course.py"
COLLECTIVES = TESTS / "backends" / "ccl" / "checks" / "collectives.py"


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
def test_three_hosts_add_up_in_rings(tmp_path: Path, possible: None, given: str, sums: list[str]) -> None:
    """All ranks use an algorithm that the user has chosen on one of them; with different ones they would hang."""
    with Bed(tmp_path, hosts=3) as bed:
        ranks = [["-n", "1", "-host", host, sys.executable, "-c", _SUMS] for host in bed.addresses]
        for rank, value in zip(ranks, given.split(" "), strict=True):
            rank[2:2] = ["-env", "CCL_ALLREDUCE", value] if value else []
        command = mpirun("intel") + [word for rank in ranks for word in [":", *rank]][1:]
        result = bed.run("h0", command, timeout=120)
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
    unequal = "warning: large sums go without shared memory, since hosts have 1 to 3 ranks"
    assert (unequal in result.stderr) == (hosts == "h0 h0 h0 h1"), result.output


def test_what_spares_the_network_is_measured_on_it(bed: Bed, tmp_path: Path) -> None:
    """`bench hosts` compares compressed gradients with a step without communication."""
    kept = tmp_path / "hosts.json"
    words = ["bench", "hosts", "--quick", "--json", str(kept), "--only", "bf16", "--only", "gloo"]
    command = [*mpirun_on(bed, "intel", 1), str(Path(sys.executable).with_name("cpudist")), *words]
    result = bed.run("h0", command, timeout=240)
    assert result.returncode == 0, result.output
    (entry,) = json.loads(kept.read_text())["results"]
    calls = {name: timings["calls_per_round"] for name, timings in entry["seconds"].items()}
    assert calls == {"no communication": 1, "bf16": 1, "gloo": 1}
