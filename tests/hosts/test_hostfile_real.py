"""What `cpudist.hosts.hostfile` writes is what the real launchers read: every rank starts where it was meant to."""

from __future__ import annotations

from pathlib import Path

import pytest
from bed import Bed
from mpis import MPIS, mpirun, named

from cpudist.hosts.hostfile import parse, spread, write

pytestmark = pytest.mark.job

WHERE = ["sh", "-c", "echo ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname)"]


@pytest.mark.parametrize(
    ("mpi", "text"),
    [
        *((mpi, "{h0}:2\n{h1_ipv4} slots=4\n") for mpi in MPIS),
        ("intel", "[{h0_ipv6}]:2\n{h1_ipv6} slots=4\n"),  # the others refuse IPv6
    ],
)
def test_ranks_start_where_the_file_says(bed: Bed, tmp_path: Path, mpi: str, text: str) -> None:
    """Five ranks, so one slot of h1 stays empty."""
    fields = {"h0": "h0"}
    for name, (ipv4, ipv6) in bed.addresses.items():
        fields |= {f"{name}_ipv4": ipv4, f"{name}_ipv6": ipv6}
    path = tmp_path / "hostfile"
    path.write_text(write(spread(parse(text.format(**fields)), ranks=5), named(mpi)))
    result = bed.run("h0", [*mpirun(mpi), named(mpi).hostfile_option, str(path), "-n", "5", *WHERE], timeout=120)
    assert result.returncode == 0, result.output
    assert sorted(result.stdout.splitlines()) == ["0 h0", "1 h0", "2 h1", "3 h1", "4 h1"], result.output
