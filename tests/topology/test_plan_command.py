"""`cpudist plan` as a user meets it."""

from __future__ import annotations

import json

import pytest
from layouts import FOLDER, LAYOUTS

from cpudist.cli.main import main
from cpudist.topology.machine import machine_from
from cpudist.topology.picture import draw
from cpudist.topology.pinning_plan import PlanOptions, make_plan


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--topology", str(FOLDER / "xeon-2s-8c2t.sysfs.tar.xz"), "--ppn", "socket", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    first = plan["ranks"][0]
    assert first["rank"] == 0
    assert first["cpus"] == [0, 1, 2, 3, 4, 5, 6]
    assert (first["omp_threads"], first["communication_cpus"], first["numa_nodes"]) == (7, [7], [0])
    assert plan["idle_cpus"] == list(range(16, 32))
    assert plan["environment"]["OMP_NUM_THREADS"] == "7"
    assert plan["warnings"] == []


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_picture_fits_the_terminal_and_shows_every_core(name: str, width: int) -> None:
    machine = machine_from(FOLDER / name)
    for ranks in ("numa", 3):
        plan = make_plan(machine, PlanOptions(ranks))  # type: ignore[arg-type]
        lines = draw(machine, plan, width).splitlines()
        assert max(map(len, lines)) <= width
        heads = [number for number, line in enumerate(lines) if line.startswith(("socket", "each cell"))]
        found = " ".join(line for line in lines[heads[0] : heads[-1]] if line.startswith("    ")).split()
        idle = len(machine.topology.cores) - len({cpu for rank in plan.ranks for cpu in rank.mask})
        assert found.count(".") + found.count("x") == max(idle, 0)
        assert not any("\x1b" in line for line in lines)


def test_the_picture() -> None:
    machine = machine_from(FOLDER / "opteron-6134-4s-cgroup2.sysfs.tar.xz")
    text = draw(machine, make_plan(machine, PlanOptions("numa", data_workers=1)), 80)
    assert "this process may use only the CPUs 0-5" in text
    assert "    CPUs 0-3            0  0  0  0d" in text
    assert "    CPUs 4-7            1  1  x  x" in text
    assert "0d loads its data, x not for this\n  process" in text
    assert "0     0-2          3        3        0" in text


def test_by_hand_and_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["plan", "--ppn", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "warning: over-subscribed: 1000 ranks share" in shown
    assert "warning: OMP_NUM_THREADS=3 is set and stays" in shown
    assert "export I_MPI_PIN_DOMAIN=" in shown


def test_another_machine_is_planned_as_if_nothing_were_set_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert main(["plan", "--json", "--topology", str(FOLDER / "epyc-7763-1s-nps4.lscpu")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [rank["omp_threads"] for rank in plan["ranks"]] == [15] * 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--ppn", "0"], "give a number of ranks from 1 to 10000, socket, numa or l3, not '0'; see"),
        (["--ppn", "99999999999"], "not '99999999999'"),
        (["--ppn", ""], "''"),
        (["--ppn", "core"], "'core'"),
        (["--data-workers", "-1"], "--data-workers"),
        (["--topology", "nowhere.xml"], "nowhere.xml does not exist"),
        (["--topology", "/dev/zero"], "/dev/zero describes no machine"),
        (["--topology", __file__], "this is not the output of `lscpu -p`"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("cpudist: ")
    assert shown.err.count("\n") == 1
    assert expected in shown.err
