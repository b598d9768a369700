"""What is there for TPUs and GPUs: jobs on CPUs, against the runtime's own interface; only the devices are made up."""

import importlib.util
import sys
from pathlib import Path

import pytest
from jobs import completed, run, torchrun

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

MADE_UP = [sys.executable, str(Path(__file__).parent / "checks" / "made_up.py")]
BOUND = 300.0


SAYS = {
    "alone": ["xla_ccl ProcessGroupXla torch.distributed.distributed_c10d", "moved: True pjrt"],
    "marked": ["refused: the script calls mark_sharding for weight, which --mesh has placed; leave one of them out"],
}


@pytest.mark.parametrize("names", [["alone"], ["marked"]])
def test_in_one_process(names: list[str]) -> None:
    """On devices of their own, and as one program over a mesh."""
    result = completed([*MADE_UP, *names], timeout=BOUND)
    for text in (text for name in names for text in SAYS[name]):
        assert text in result.stdout, result.output


def test_ranks_that_the_runtime_does_not_connect_or_numbers_differently_are_refused() -> None:
    """Left to itself, the runtime makes a world of each CPU process."""
    result = run([*torchrun(2), MADE_UP[1], "ranks"], timeout=BOUND)
    apart = "refused: the runtime has connected 1 devices of 1 processes, and this job has 2 ranks (torchrun)"
    assert result.stdout.count(apart) == 2, result.output
    assert result.stdout.count("(torchrun) has the device that the runtime numbers") == 2, result.output
