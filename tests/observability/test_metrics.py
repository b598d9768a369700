"""`--metrics-port`: a job is scraped as Prometheus does it; and the record that such a job leaves unasked."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from jobs import mpirun, run, train
from observed import Observed

from cpudist.cli.main import main
from cpudist.cli.parser import endpoint
from cpudist.errors import UserError
from cpudist.job import job_options
from cpudist.job.job_options import JobOptions
from cpudist.observability.record import RunRecord
from cpudist.topology.identity import free_port

# Rank 1 computes longer; rank 0 asks for the figures when both have published them.
SCRIPT = """
import sys, time, urllib.request
import torch
import cpudist

port, file = sys.argv[1:]
world = cpudist.init()
model = cpudist.wrap(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(60):
    time.sleep(0.05 * world.rank)
    model(torch.ones(4, 8)).sum().backward()
    cpudist.step(optimizer)
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


def test_without_the_library_the_job_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_options, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'cpudist\[metrics\]'"):
        JobOptions(metrics_port=("127.0.0.1", 9400))


@pytest.mark.job
def test_a_job_is_scraped_and_leaves_its_record_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install prometheus-client")
    script, page, port = tmp_path / "own.py", tmp_path / "page.txt", str(free_port())
    script.write_text(SCRIPT)
    command = mpirun(2, *train("--backend", "ccl", "--metrics-port", port, str(script), port, str(page)))
    result = run(command, 120, {"CPUDIST_RUNS": str(tmp_path / "runs")}, tmp_path)
    assert result.returncode == 0, result.output
    assert f"cpudist: metrics at http://127.0.0.1:{port}/metrics\n" in result.stderr

    families = {family.name: family for family in parser.text_string_to_metric_families(page.read_text())}
    assert families["cpudist_step_seconds"].samples[0].value > 0.04
    assert families["cpudist_restarts"].samples[0].value == 0
    assert "cpudist_loss" not in families, "nobody has logged one"
    found = {}
    for name in ("steps", "waiting_seconds", "loading_seconds", "cpu_seconds", "memory_bytes"):
        samples = families[f"cpudist_{name}"].samples
        found[name] = {sample.labels["rank"]: sample.value for sample in samples}
        assert found[name].keys() == {"0", "1"}, samples
        assert {sample.name for sample in samples} == {f"cpudist_{name}{'' if name == 'memory_bytes' else '_total'}"}
        assert all(sample.labels["host"] for sample in samples)
    assert found["steps"] == {"0": 60, "1": 60}
    assert found["waiting_seconds"]["0"] > 60 * 0.04
    assert found["memory_bytes"]["0"] > 1 << 20

    (file,) = tmp_path.glob("runs/own-*/cpudist.json")
    assert f", 60 steps; record in runs/{file.parent.name}/cpudist.json\n" in result.stderr
    record = json.loads(file.read_text())
    assert (record["exit"], record["steps"], record["attempts"]) == ("completed", 60, [[0, 60]])
    assert record["step_seconds"]["median"] > 0.04
    waits, delays = ([row[name] for row in record["waiting"]] for name in ("waits", "delays"))
    assert waits[0] > 0.5
    assert delays[0] == 0 < delays[1]
    assert main(["summary", str(file.parent)]) == 0
    assert re.search(rf"^1 +\S+ +\d+% +{delays[1]:.0%}$", capsys.readouterr().out, re.MULTILINE)


def test_a_port_that_is_taken_is_a_user_error() -> None:
    pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
    from cpudist.observability.metrics import Metrics

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match=r"\(Address already in use\); give another --metrics-port"):
            Metrics(Observed(), RunRecord(Observed()), *other.getsockname())
