"""What `cpudist.launch.hostfile` writes is what the real launchers read: every rank starts where it was meant to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bed import Bed

from cpudist.launch.hostfile import OPTION, Host, Mpi, parse, spread, write

MPIRUN: dict[Mpi, list[str]] = {
    "intel-mpi": ["mpirun"],
    "mpich": ["mpirun.mpich"],
    "open-mpi": ["mpirun.openmpi", "--allow-run-as-root"],
}
WHERE = ["sh", "-c", "echo ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname)"]


@pytest.mark.parametrize(
    ("mpi", "kind"),
    [(mpi, kind) for mpi in MPIRUN for kind in ("name", "IPv4")] + [("intel-mpi", "IPv6")],  # others refuse IPv6
)
def test_ranks_start_where_the_file_says(bed: Bed, tmp_path: Path, mpi: Mpi, kind: str) -> None:
    if shutil.which(MPIRUN[mpi][0]) is None and mpi != "intel-mpi":
        pytest.skip(f"{MPIRUN[mpi][0]} is not installed")
    h0, h1 = ((name, *addresses)[("name", "IPv4", "IPv6").index(kind)] for name, addresses in bed.addresses.items())
    path = tmp_path / "hostfile"
    path.write_text(write([Host(h0, 1), Host(h1, 3)], mpi))
    result = bed.run("h0", [*MPIRUN[mpi], OPTION[mpi], str(path), "-n", "4", *WHERE], timeout=30)
    assert result.returncode == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["0 h0", "1 h1", "2 h1", "3 h1"], result.output


@pytest.mark.parametrize("mpi", MPIRUN)
def test_fewer_ranks_than_slots(bed: Bed, tmp_path: Path, mpi: Mpi) -> None:
    if shutil.which(MPIRUN[mpi][0]) is None and mpi != "intel-mpi":
        pytest.skip(f"{MPIRUN[mpi][0]} is not installed")
    path = tmp_path / "hostfile"
    path.write_text(write(spread(parse("h0:2\nh1 slots=4"), ranks=3), mpi))
    result = bed.run("h0", [*MPIRUN[mpi], OPTION[mpi], str(path), "-n", "3", *WHERE], timeout=30)
    assert sorted(result.stdout.splitlines()) == ["0 h0", "1 h0", "2 h1"], result.output
