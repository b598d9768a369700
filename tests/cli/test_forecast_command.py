"""`cpudist forecast`: of a script that makes its steps here, and of records."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, run

from cpudist import user_cache
from cpudist.cli.main import main

Records = Callable[..., Path]
SCRIPT = """
import time
import cpudist, torch
world = cpudist.init()
layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
model = cpudist.wrap(torch.nn.Sequential(*layers))
layers[1].register_full_backward_hook(lambda *_: time.sleep(0.2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(4, 1024)).sum().backward()
    cpudist.step(optimizer)
    optimizer.zero_grad()
"""


@pytest.mark.job
def test_a_script_makes_its_steps_here(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [str(BIN / "cpudist"), "forecast", "--hosts", "2,8", "--network", "1gbit", "--json", "--", str(script)]
    shown = run(command, timeout=200)
    assert shown.returncode == 0, shown.output
    found = {(one["hosts"], one["compress"]): one for one in json.loads(shown.stdout)["forecasts"]}
    assert list(found) == [(1, "none"), *((hosts, scheme) for hosts in (2, 8) for scheme in ("none", "bf16", "int8"))]
    assert found[1, "none"]["step"] == found[1, "none"]["measured"] > 0.2
    # 8.4 of the 16.8 MB are complete 0.2 s before the others, so only these, 0.075 s, are waited for.
    assert 0.06 < found[2, "none"]["waiting"] < 0.08
    assert found[2, "none"]["waiting"] < found[8, "none"]["waiting"]
    assert found[2, "int8"]["memory"] - found[2, "none"]["memory"] == 4 * 4 * (1024 * 1024 + 1024)


def test_a_record_in_a_table(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", str(records(tmp_path / "out")), "--hosts", "4", "--network", "1gbit"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    shown = [" ".join(line.split()[:2]) for line in lines]
    assert shown[:5] == ["1 none", "2 none", "2 bf16", "2 int8", "4 none"]
    assert lines[2].split()[2:6] == ["1078", "ms", "1200", "ms"]  # the run itself
    assert lines[-1].startswith("On 4 hosts computing is the limit, and ")
    assert max(map(len, [head, *lines[:-1]])) <= 80


def test_further_runs_are_compared(records: Records, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = records(tmp_path / "one", hosts=["n0"], world_size=1, gradients=None)
    later = records(tmp_path / "four", hosts=["n0", "n1", "n2", "n3"], world_size=4, step_seconds={"median": 1.4})
    assert main(["forecast", str(alone), str(later), "--hosts", "2", "--network", "1gbit", "--json"]) == 0
    forecasts = json.loads(capsys.readouterr().out)["forecasts"]
    measured = {(one["hosts"], one["compress"]): one["measured"] for one in forecasts if one["measured"]}
    assert measured == {(1, "none"): 1.2, (4, "bf16"): 1.4}


def test_the_network_of_the_last_test(
    records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user_cache.write("network.json", {"bandwidth": 6.7e7})
    assert main(["forecast", str(records(tmp_path / "out")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bandwidth"] == 6.7e7
