"""`cpudist plan` as a user meets it."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import run
from layouts import LAYOUTS, machine_of, unpack

from cpudist.cli.main import main
from cpudist.compiler import build_folder
from cpudist.pinning import measured_ranks
from cpudist.pinning.picture import draw
from cpudist.pinning.plan import PlanOptions, make_plan
from cpudist.topology.limits import Limits

COMMAND = [sys.executable, "-m", "cpudist"]

_TRAINS = """
import sys, torch, cpudist
class Ones(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.ones(8)

if __name__ == "__main__":  # the process that loads data imports this file
    assert sys.argv[1:] == ["word"]
    model = cpudist.wrap(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ones in torch.utils.data.DataLoader(Ones(), 4, num_workers=1, multiprocessing_context="spawn"):
        model(ones).sum().backward()
        cpudist.step(optimizer)
"""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CPUDIST_CACHE", str(build_folder()))  # of compiled libraries
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_another_machine_is_planned_as_if_nothing_were_set_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    unpack("xeon-2s-8c2t.sysfs.tar.xz", tmp_path)
    assert main(["plan", "--topology", str(tmp_path), "--ppn", "socket", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    first = {"rank": 0, "cpus": [*range(8)], "omp_threads": 8, "numa_nodes": [0]}
    assert plan["ranks"][0] == {**first, "communication_cpus": []}
    assert plan["idle_cpus"] == list(range(16, 32))
    assert plan["environment"]["OMP_NUM_THREADS"] == "8"
    assert plan["warnings"] == []


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_picture_fits_the_terminal_and_shows_every_core(name: str, width: int) -> None:
    machine = machine_of(name)
    for ranks in ("numa", 3):
        plan = make_plan(machine, PlanOptions(ranks))  # type: ignore[arg-type]
        lines = draw(machine, plan, width).splitlines()
        assert max(map(len, lines)) <= width
        heads = [number for number, line in enumerate(lines) if line.startswith(("socket", "each cell"))]
        found = " ".join(line for line in lines[heads[0] : heads[-1]] if line.startswith("    ")).split()
        idle = len(machine.topology.cores) - len({cpu for rank in plan.ranks for cpu in rank.cpus})
        assert found.count(".") + found.count("x") == max(idle, 0)
        assert not any("\x1b" in line for line in lines)


def test_the_picture() -> None:
    whole = machine_of("opteron-6134-4s-cgroup2.sysfs.tar.xz")
    machine = replace(whole, limits=Limits(cpus=frozenset(range(6)), memory=4 << 30))
    text = draw(machine, make_plan(machine, PlanOptions("numa", omp_threads=2)), 80)
    assert text.startswith("machine: 4 sockets, 8 NUMA nodes, 8 L3 groups, 32 cores, 32 CPUs, 128 GB of\n")
    assert [line for line in text.splitlines() if line.startswith("socket")] == [f"socket {n}" for n in range(4)]
    assert "this process may use only the CPUs 0-5" in text
    assert "    CPUs 0-3            0 0 0 0" in text
    assert "    CPUs 4-7            1 1 x x" in text
    assert "0 computes for rank 0, x not for this process" in " ".join(text.split())
    assert "rank 0 computes with 2 threads on CPUs 0-3\n" in text
    assert "this process may use only 4 GB of memory" in text
    more = replace(whole, limits=Limits(memory=256 << 30))  # a virtual machine has less until it needs it
    assert "GB of memory" not in draw(more, make_plan(more, PlanOptions(1)), 80)


def test_a_measured_number_of_ranks_is_the_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert measured_ranks.load() is None
    measured_ranks.save(3)
    assert main(["plan", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ranks"]) == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["plan", "--ppn", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "warning: over-subscribed: 1000 ranks share" in shown
    assert "warning: OMP_NUM_THREADS=3 is set and stays" in shown
    (tmp_path / "cpudist" / "ranks.json").write_text("[")
    assert measured_ranks.load() is None


@pytest.mark.job
def test_the_ranks_of_a_target_are_measured_and_launched(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_TRAINS)
    words = ["plan", "--measure", "--", "-m", script.stem, "word"]
    found = run([*COMMAND, *words], timeout=180, cwd=tmp_path)
    assert found.returncode == 0, found.output
    rows = re.findall(r"^ +(\d+) +\d+ +\S+ +\S+ [MG]B$", found.stdout, re.MULTILINE)
    fastest = re.findall(r"^fastest: (\d+) ranks? \(mpirun -ppn \1\)", found.stdout, re.MULTILINE)
    assert rows[:1] == ["1"], found.output
    assert fastest[0] in rows
    launched = run([*COMMAND, "launch", "--dry-run", "--", str(script)], timeout=60)
    assert f"-n {fastest[0]} " in launched.stdout

    script.write_text("raise OSError('no data')")
    found = run([*COMMAND, "plan", "--measure", "--", str(script)], timeout=180)
    assert found.returncode == 2
    assert "no steps of 1 rank could be timed" in found.stderr
    assert "OSError: no data" in found.stderr
