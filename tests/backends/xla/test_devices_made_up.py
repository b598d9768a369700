"""What is there for TPUs and GPUs: jobs on CPUs, against the runtime's own interface; only the devices are made up."""

import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import Result, completed, run, torchrun

from cpudist.topology.identity import free_port

pytestmark = [pytest.mark.job, pytest.mark.versions]

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed", allow_module_level=True)

MADE_UP = [sys.executable, str(Path(__file__).parent / "checks" / "made_up.py")]
BOUND = 300.0


SAYS = {
    "alone": ["xla_ccl ProcessGroupXla torch.distributed.distributed_c10d", "moved: True pjrt"],
    "hosts": [
        "refused: the script calls mark_sharding for weight, which --mesh has placed; leave one of them out",
        "labels: [0, 1, 2, 3]",
        "fed in parts: True",
        "refused: several hosts feed their own part of a batch: take",
    ],
    "hybrid": [
        "the same: True True",
        "refused: --mesh data=16 does not fit this TPU: Provide dcn_mesh_shape to create a mesh for multislice",
    ],
}


@pytest.mark.parametrize("names", [["alone"], ["hosts", "hybrid"]])
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


def test_ranks_that_plain_torchrun_leaves_alone_get_one_line(tmp_path: Path) -> None:
    """Without a job of cpudist's, the runtime makes a world of each CPU process, and says nothing."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist, torch_xla.distributed.xla_backend\n"
        "dist.init_process_group('xla', init_method='xla://'); print('world of', dist.get_world_size())"
    )
    result = run([*torchrun(2), str(script)], timeout=BOUND, env={"PJRT_DEVICE": "CPU"})
    assert result.stdout.count("world of 1\n") == 2, result.output
    said = "PyTorch/XLA has not connected the 2 processes of torchrun, and each trains alone"
    assert result.stderr.count(said) == 1, result.output


def test_workers_of_a_pod_that_are_started_alike_are_one_job() -> None:
    """Nobody tells them of each other but the runtime."""
    port = str(free_port())

    def worker(number: int) -> Result:
        return run([*MADE_UP, "pod"], timeout=BOUND, env={"WORKER": str(number), "MASTER_PORT": port})

    with ThreadPoolExecutor(2) as pool:
        for number, result in enumerate(pool.map(worker, range(2))):
            assert result.returncode == 0, result.output
            assert f"rank {number} of 2, met ['0', '1'], data=2" in result.stdout, result.output
