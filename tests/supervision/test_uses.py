"""Loops as users write them end as promised, whatever happens to rank 1; a quarter of what scripts/faults.sh tries."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import uses

WAYS = ("memory", "gloo", "oneccl", "mpi")
FAULTS = [fault for fault in uses.FAULTS if fault != "lost"]


@pytest.mark.job
@pytest.mark.parametrize("use", uses.USES)
def test_each_fault_ends_as_promised(use: str) -> None:
    """Each fault over one of the ways, three jobs at a time: most of them wait."""
    first = uses.USES.index(use)
    chosen = [(fault, WAYS[(first + number) % len(WAYS)]) for number, fault in enumerate(FAULTS)]
    with ThreadPoolExecutor(3) as pool:
        endings = pool.map(lambda one: uses.run(use, *one), chosen)
        for (fault, way), ending in zip(chosen, endings, strict=True):
            assert ending.shortcomings(fault) == [], f"{fault} over {way}: {ending}\n{ending.output}"
