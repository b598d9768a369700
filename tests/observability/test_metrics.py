"""What users see of a job with a slow rank: lines, the record that it leaves unasked, and `--metrics-port`."""

import json
import re
import resource
import time
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
import torch
from jobs import completed, mpirun, train
from observed import ALONE, Observed
from prometheus_client.parser import text_string_to_metric_families

from cpudist.cli.main import main
from cpudist.cli.parser import endpoint
from cpudist.errors import UserError
from cpudist.observability.metrics import Metrics
from cpudist.observability.pace import PaceMeter
from cpudist.observability.record import RunRecord
from cpudist.supervision.rank_status import Pace, RankStatus
from cpudist.topology.identity import free_port

# Rank 0 asks for the figures when both ranks have published them.
SCRIPT = """
import sys, time, urllib.request
import torch
import cpudist

port, file = sys.argv[1:]
world = cpudist.init()
model = torch.nn.Linear(8, 8)
model = torch.nn.parallel.DistributedDataParallel(model) if world.backend == "gloo" else cpudist.wrap(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    time.sleep(0.5 if world.rank == 1 else 0.08)
    model(torch.ones(4, 8)).sum().backward()
    cpudist.step(optimizer)
    cpudist.log(loss=torch.tensor(1 / (step + 1)), samples=4)
if world.rank == 0:
    time.sleep(3)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page, open(file, "wb") as written:
        written.write(page.read())
torch.distributed.barrier()
"""


def test_an_address_and_a_port() -> None:
    assert endpoint("9400") == ("127.0.0.1", 9400)
    assert endpoint("0.0.0.0:0") == ("0.0.0.0", 0)
    assert endpoint("[::1]:9400") == ("::1", 9400)


@pytest.mark.job
@pytest.mark.parametrize(("backend", "transport"), [("ccl", "shared memory"), ("gloo", "tcp")])
def test_a_slow_rank_is_shown(backend: str, transport: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, page, port = tmp_path / "own.py", tmp_path / "page.txt", str(free_port())
    script.write_text(SCRIPT)
    command = mpirun(2, *train("--backend", backend, "--metrics-port", port, str(script), port, str(page)))
    result = completed(command, 150, {"CPUDIST_RUNS": str(tmp_path / "runs")}, tmp_path)
    (steps,) = re.findall(r"cpudist: rank 1 \(\S+\) makes the others wait: in (\d+) steps", result.stderr)
    assert int(steps) <= 10, result.stderr
    assert f"{backend} over {transport}, started in " in result.stderr
    assert f"cpudist: metrics at http://127.0.0.1:{port}/metrics\n" in result.stderr

    figures = _figures(page.read_text())
    assert figures["cpudist_steps_total", "0"] == figures["cpudist_steps_total", "1"] == 30
    assert figures["cpudist_waiting_seconds_total", "0"] > 30 * 0.3
    (file,) = tmp_path.glob("runs/own-*/cpudist.json")
    record = json.loads(file.read_text())
    assert (record["exit"], record["loss"]["first"], len(record["losses"])) == ("completed", 1.0, 30)
    assert record["samples_per_second"] == pytest.approx(2 * 4 / record["step_seconds"]["median"], rel=0.3)
    (waits, _), (delay, delays) = ([row[name] for row in record["waiting"]] for name in ("waits", "delays"))
    assert waits > 0.5
    assert delay == 0
    assert 0.6 < delays < 0.9
    slowest = rf"rank 1 on \S+ made the others wait {100 * delays:.0f} % of the time, mostly in own\.py:12"
    assert re.search(rf", 30 steps; {slowest}; record in runs/{file.parent.name}/cpudist.json\n", result.stderr)
    assert main(["summary", str(file.parent)]) == 0
    assert re.search(rf"^1 +\S+ +\d+% +{delays:.0%}$", capsys.readouterr().out, re.MULTILINE)


def _figures(page: str) -> dict[tuple[str, ...], float]:
    """Return the figures of a page by their name and rank."""
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return {(one.name, *filter(None, [one.labels.get("rank")])): one.value for one in samples}


def test_what_is_served_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    job = Observed(restarts=3)
    pace = Pace(60, 9.0, 1.5, 1 << 20, 0.25, 7.5, 1 << 30, 0.1, 0, None, 8)
    job.ranks = {0: RankStatus(0, "h0", pace=pace), 1: RankStatus(1, "h1", pace=replace(pace, waited=None, bytes=None))}
    job.ranks[2] = RankStatus(2, "h2")
    record = RunRecord(job)
    metrics = Metrics(job, record, "127.0.0.1", 0)
    url = re.fullmatch(r"cpudist: metrics at (http://127.0.0.1:\d+/metrics)\n", capsys.readouterr().err)[1]
    assert metrics._server.server_address[0] == "127.0.0.1"
    with pytest.raises(UserError, match=r"\(Address already in use\); give another --metrics-port"):
        Metrics(job, record, "127.0.0.1", int(url.split(":")[2].partition("/")[0]))

    def scrape() -> str:
        with urlopen(url, timeout=9) as page:
            return page.read().decode()

    assert ("cpudist_loss",) not in _figures(scrape())
    record.training.times.extend([(9.0, None), (0.5, None)])
    record.training.losses = [4.0, 2.0]
    text = scrape()
    assert _figures(text) == {
        ("cpudist_restarts_total",): 3,
        ("cpudist_step_seconds",): 0.5,
        ("cpudist_loss",): 2.0,
        **{("cpudist_steps_total", rank): 60 for rank in "01"},
        ("cpudist_waiting_seconds_total", "0"): 1.5,
        ("cpudist_communicated_bytes_total", "0"): 1 << 20,
        **{("cpudist_loading_seconds_total", rank): 0.25 for rank in "01"},
        **{("cpudist_cpu_seconds_total", rank): 7.5 for rank in "01"},
        **{("cpudist_memory_bytes", rank): 1 << 30 for rank in "01"},
    }
    assert 'cpudist_steps_total{host="h1",rank="1"} 60.0' in text
    metrics.stop()
    with pytest.raises(URLError):
        scrape()
    job.changes.undo()


def test_figures_of_this_rank() -> None:
    job = Observed(replace(ALONE, node_rank=1, node_count=2, hosts=("h0", "h1")), restarts=2)
    job.backend.seconds, job.backend.sent, job.counter.loading = 1.5, 7, 0.25
    record = RunRecord(job)
    record.training.times.append((4.0, 1.0))
    record.training.losses, record.checkpoint = [2.0], "step-1"
    meter = PaceMeter(job, record)
    assert (meter.read().step_at, meter.read().step_waited) == (None, None)
    job.counter.steps = 3
    before = time.monotonic()
    meter.step(None)
    job.backend.seconds = 2.5
    figures = meter.figures()
    expected = {"host": "h1", "restarts": 2, "steps": 3, "waited": 2.5, "bytes": 7, "loading": 0.25}
    expected |= {"threads": torch.get_num_threads(), "step_waited": 1.5, "losses": [2.0], "checkpoint": "step-1"}
    assert {name: figures[name] for name in expected} == expected
    assert before <= figures["step_at"] <= figures["at"] <= time.monotonic()
    assert figures["processor"] == pytest.approx(time.process_time(), abs=0.5)
    assert figures["memory"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert figures["faults"] == pytest.approx(usage.ru_minflt + usage.ru_majflt, rel=0.1)
    assert figures["run_queue_delay"] is None or 0 <= figures["run_queue_delay"] < time.monotonic()
    assert (figures["communication_share"], meter.read(at_end=True).communication_share) == (None, 0.25)
    job.changes.undo()
