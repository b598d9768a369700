"""What ranks of one job record together: forks of this process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import begin, fork_ranks

from cpudist.observability.timeline import Timeline


@pytest.mark.job
def test_a_timeline_of_two_ranks(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])

    def script() -> None:
        job = begin()
        job.observers.add(Timeline(job, tmp_path / "trace.json", (2, 4)))
        for _ in range(7):
            torch.ones(4, 4) @ torch.ones(4, 4)
            dist.all_reduce(torch.ones(8))
            optimizer.step()
        job.shutdown()

    (first, output), (second, _) = fork_ranks(script)
    assert (first, second) == (0, 0)
    assert re.search(r"cpudist: \S+/trace\.json has steps 2 to 3, .* the clocks agree within \d+ µs\n", output), output
    assert re.search(r"^cpudist:   waiting for rank [01] \(\S+\) \d+ %, for others", output, re.MULTILINE), output
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for rank in (0, 1):
        own = [event for event in events if event["pid"] == rank and event["ph"] == "X"]
        assert [event["name"] for event in own[:2]] == ["step 2", "step 3"]
        calls = [event for event in own if "args" in event]
        first_call = calls[0]["args"]["sequence"]
        assert [call["name"] for call in calls] == [f"{first_call + number}: all_reduce of 32 B" for number in (0, 1)]
        assert {call["args"]["transport"] for call in calls} == {"tcp"}
        steps = [(event["ts"], event["ts"] + event["dur"]) for event in own[:2]]
        assert steps[0][1] == steps[1][0]
        assert all(start <= call["ts"] <= end for (start, end), call in zip(steps, calls, strict=True))
    by_number = [{event["pid"]: event for event in events if event["name"] == call["name"]} for call in calls]
    ends = [[one["ts"] + one["dur"] for one in both.values()] for both in by_number]
    assert all(abs(one - other) < 100_000 for one, other in ends), "clocks are aligned"
