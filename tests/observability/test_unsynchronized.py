"""A script that trains on several ranks and never communicates is told so at the end, and no other script."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from observed import ALONE, Observed
from ranks import begin, fork_ranks

from cpudist.observability.unsynchronized import UnsynchronizedRanks

SAID = "cpudist: warning: 2 ranks trained without gradient synchronisation (cpudist docs own-script)\n"


@pytest.mark.parametrize(
    ("fields", "steps", "before", "after", "warns"),
    [
        ({}, 1, ([], 0.0), ([], 0.0), True),
        ({}, 1, ([], None), ([], None), True),
        ({}, 0, ([], 0.0), ([], 0.0), False),
        ({}, 1, ([], 0.0), ([("", 1)], 0.0), False),
        ({}, 1, ([], 0.0), ([], 0.5), False),  # the script has destroyed its groups
        ({}, 1, (None, 0.0), (None, 0.0), False),  # the backend does not know
        ({"rank": 1}, 1, ([], 0.0), ([], 0.0), False),
        ({"size": 1}, 1, ([], 0.0), ([], 0.0), False),
        ({"device_type": "xla"}, 1, ([], 0.0), ([], 0.0), False),
    ],
)
def test_rank_0_of_several_on_cpus_warns(
    fields: dict[str, object], steps: int, before: tuple[object, float | None], after: tuple[object, float | None],
    warns: bool, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job = Observed(replace(ALONE, **{"size": 2, **fields}))
    job.backend.collectives, job.backend.seconds = before
    observer = UnsynchronizedRanks(job)
    job.counter.steps = steps
    job.backend.collectives, job.backend.seconds = after
    observer.end()
    assert capsys.readouterr().err == (SAID if warns else "")
    job.changes.undo()


@pytest.mark.job
@pytest.mark.parametrize("synchronized", [False, True])
def test_a_job_of_two_ranks(synchronized: bool) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])

    def script() -> None:
        job = begin()
        if synchronized:
            dist.all_reduce(torch.ones(1))
        optimizer.step()
        job.shutdown()

    assert fork_ranks(script) == [(0, "" if synchronized else SAID), (0, "")]
