"""`cpudist test --hostfile` on hosts of the bed, one of which has a slow link, and over an interface without one."""

import json
from pathlib import Path

import pytest
from bed import Bed
from jobs import BIN

from cpudist.compiler import cache_folder

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("possible")]


def test_a_slow_link_is_named(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    figures = tmp_path / "cluster.json"
    with Bed(tmp_path_factory.mktemp("bed"), hosts=3) as bed:
        bed.limit("400mbit")
        bed.limit("40mbit", "h2")
        command = [str(BIN / "cpudist"), "test", "--hostfile", bed.hostfile(), "--json", str(figures)]
        env = {"XDG_CACHE_HOME": str(tmp_path), "CPUDIST_CACHE": str(cache_folder())}
        shown = bed.run("h0", command, timeout=300, env=env)
    assert shown.returncode == 1, shown.output
    found = json.loads(figures.read_text())
    named = {(finding["about"], finding["message"].split(" at most ")[0]) for finding in found["findings"]}
    assert ("h2", "sends and receives") in named, shown.output
    assert not any("links" in finding["message"] for finding in found["findings"] if finding["about"] != "h2")
    between = {(link["source"], link["target"]): 8 * link["bandwidth"] / 1e6 for link in found["figures"]["links"]}
    assert len(between) == 6
    for ends, mbit in between.items():
        expected = 40 if 2 in ends else 400
        assert 0.6 * expected < mbit < 1.3 * expected, between
    assert found["figures"]["loss"][0] == pytest.approx(found["figures"]["loss"][1], rel=1e-3)
    assert "h2  " in shown.stdout


def test_an_interface_that_leads_nowhere_is_named_before_any_rank_starts(bed: Bed) -> None:
    command = [str(BIN / "cpudist"), "test", "--hostfile", bed.hostfile(), "--interface", "lo"]
    result = bed.run("h0", command, timeout=60)
    assert result.returncode == 2, result.output
    (line,) = result.report.splitlines()
    assert "line 2: h1 cannot connect to this host at 127.0.0.1 port " in line
    assert "Connection refused; open ports 1024 to 65535" in line
