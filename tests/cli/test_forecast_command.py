"""`cpudist forecast`: of a script that makes its steps here, and of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import BIN, run

from cpudist import user_cache
from cpudist.cli.main import main
from cpudist.errors import USER_ERROR

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


def _record(folder: Path, **fields: Any) -> Path:
    record = {"world_size": 2, "hosts": ["n0", "n1"], "backend": "ccl", "gradients": {"compress": "bf16"}}
    record |= {"step_seconds": {"median": 1.2}, "samples_per_second": 10.0, "memory": 2 << 30}
    record |= {"pinning": [{"omp_threads": 1000}]}
    record |= {"gradient_times": {"waiting": 0.3, "values": 20_000_000, "groups": [[0.5, 40_000_000], [0, 40_000_000]]}}
    folder.mkdir()
    (folder / "cpudist.json").write_text(json.dumps(record | fields))
    return folder


def test_a_record_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forecast", str(_record(tmp_path / "out")), "--hosts", "4", "--network", "1gbit"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    shown = [" ".join(line.split()[:2]) for line in lines]
    assert shown[:5] == ["1 none", "2 none", "2 bf16", "2 int8", "4 none"]
    assert lines[2].split()[2:6] == ["1078", "ms", "1200", "ms"]  # the run itself
    assert lines[-1].startswith("On 4 hosts computing is the limit, and ")
    assert max(map(len, [head, *lines[:-1]])) <= 80


def test_further_runs_say_how_far_off_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = _record(tmp_path / "one", hosts=["n0"], world_size=1, gradients=None)
    later = _record(tmp_path / "four", hosts=["n0", "n1", "n2", "n3"], world_size=4, step_seconds={"median": 1.4})
    assert main(["forecast", str(alone), str(later), "--hosts", "2", "--network", "1gbit", "--json"]) == 0
    forecasts = json.loads(capsys.readouterr().out)["forecasts"]
    measured = {(one["hosts"], one["compress"]): one["measured"] for one in forecasts if one["measured"]}
    assert measured == {(1, "none"): 1.2, (4, "bf16"): 1.4}


def test_the_network_of_the_last_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    user_cache.write("network.json", {"bandwidth": 6.7e7})
    assert main(["forecast", str(_record(tmp_path / "out")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bandwidth"] == 6.7e7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out", "--hosts", "0"], "argument --hosts: give a whole number from 1 on, not '0'"),
        (["out", "--hosts", "2,"], "argument --hosts: give a whole number from 1 on, not ''"),
        (["out", "--network", "10parsec"], "argument --network: give a rate such as 100mbit or 10gbit, not '10parsec'"),
        (["out", "--network", "0gbit"], "not '0gbit'"),
        (["out"], "the network is not known; give --network 1gbit, or run cpudist test"),
        (["empty", "--network", "1gbit"], "cannot read empty/cpudist.json"),
        (["other.json", "--network", "1gbit"], "other.json is not the record of a run"),
        (["old.json", "--network", "1gbit"], "old.json has no times of gradients"),
        (["none.py", "--network", "1gbit"], "there is no script none.py"),
        (["out", "more", "--network", "1gbit"], "cannot read more (No such file"),
        (["--network", "1gbit", "--", "-m"], "cannot read -m (No such file"),
        ([], "the following arguments are required"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    _record(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "old.json").write_text(json.dumps({"world_size": 2, "hosts": ["a"], "step_seconds": {"median": 1.0}}))
    assert main(["forecast", *words]) == USER_ERROR
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
