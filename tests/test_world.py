"""Who is on which node, from what every rank says of itself; which rank was lost first."""

import os
import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.launchers import Placement
from cpudist.launchers.mpich import Mpich
from cpudist.launchers.openmpi import OpenMpi
from cpudist.processes.attempt import JOB_ID
from cpudist.processes.lost_ranks import LostRank, first_killed, tell_launch, told
from cpudist.world import RankInfo, World, assign_nodes, elsewhere

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def members(nodes_of_ranks: list[int], local: bool = True, identities: list[str] | None = None) -> list[RankInfo]:
    """One member per rank; the argument says on which node each rank is."""
    found = []
    for rank, node in enumerate(nodes_of_ranks):
        local_rank = nodes_of_ranks[:rank].count(node) if local else None
        local_size = nodes_of_ranks.count(node) if local else None
        identity = identities[node] if identities else f"node{node}"
        found.append(RankInfo(identity, "same-name", Placement(rank, len(nodes_of_ranks), local_rank, local_size)))
    return found


def check(worlds: list[World], nodes_of_ranks: list[int]) -> None:
    """The worlds describe these nodes, numbered by their lowest rank."""
    order = list(dict.fromkeys(nodes_of_ranks))
    assert [world.node_rank for world in worlds] == [order.index(node) for node in nodes_of_ranks]
    assert {world.node_count for world in worlds} == {len(order)}
    for node in range(len(order)):
        on_node = [world for world in worlds if world.node_rank == node]
        assert sorted(world.local_rank for world in on_node) == list(range(len(on_node)))
        assert {world.local_size for world in on_node} == {len(on_node)}


@given(shapes, st.booleans(), st.randoms(use_true_random=False))
def test_any_order_of_ranks(shape: list[int], local: bool, shuffle: random.Random) -> None:
    ranks = [node for node, size in enumerate(shape) for _ in range(size)]
    shuffle.shuffle(ranks)
    check(assign_nodes(members(ranks, local), "mpich"), ranks)


@given(st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_nodes_that_look_the_same_are_told_apart_by_local_ranks(nodes: int, ppn: int, round_robin: bool) -> None:
    ranks = [rank % nodes if round_robin else rank // ppn for rank in range(nodes * ppn)]
    check(assign_nodes(members(ranks, identities=["twin"] * nodes), "mpich"), ranks)


def test_the_launchers_node_ranks_win() -> None:
    given_by_torchrun = [
        RankInfo("twin", "h", Placement(0, 2, 0, 1, node_rank=1, node_count=2)),
        RankInfo("twin", "h", Placement(1, 2, 0, 1, node_rank=0, node_count=2)),
    ]
    assert [world.node_rank for world in assign_nodes(given_by_torchrun, "torchrun")] == [1, 0]


def test_a_node_with_too_few_ranks_is_an_error() -> None:
    with pytest.raises(UserError):
        assign_nodes([RankInfo("a", "h", Placement(rank, 3, rank, 3)) for rank in range(2)], "mpich")


def test_ranks_that_run_elsewhere_than_promised() -> None:
    one, two = members([0, 0, 0, 0]), members([0, 0, 1, 1])
    alias = members([0, 0, 1, 1], identities=["node0", "node0"])  # one machine stands in the hostfile under two names
    assert elsewhere(two, assign_nodes(two, "mpich")[0], requested_nodes=2) == ""
    assert elsewhere(one, assign_nodes(one, "mpich")[0], requested_nodes=None) == ""
    said = elsewhere(one, assign_nodes(one, "mpich")[0], requested_nodes=2)
    assert said.startswith("mpich was asked for 2 hosts, but all ranks run on same-name; ")
    said = elsewhere(alias, assign_nodes(alias, "mpich")[0], requested_nodes=None)
    assert said.startswith("mpich counts same-name as 2 hosts, so ranks share cores; ")


def test_variables_that_open_mpi_keeps_from_other_hosts_are_named_once() -> None:
    shell = {"DATA": "", "HF_HOME": "", "PWD": "/", "SSH_TTY": "", "OMPI_COMM_WORLD_SIZE": "2", "LC_ALL": "C"}
    here, there = (OpenMpi(variables) for variables in (shell, {"PATH": "", "PWD": "/"}))
    assert here.not_passed_on == {"DATA", "HF_HOME"}
    rank = RankInfo("n0", "h0", Placement(0, 2), not_passed_on=here.not_passed_on)
    assert RankInfo.from_json(rank.to_json()) == rank
    said = here.lacking("h1", there.not_passed_on)
    assert said == "Open MPI does not give h1 the shell's HF_HOME, DATA; add -x HF_HOME and so on to mpirun"
    assert here.lacking("h0", here.not_passed_on) == ""
    assert Mpich(shell).not_passed_on == set()


@pytest.mark.parametrize(
    ("killed", "first_ended", "first"),
    [
        ([], {"h1": 1}, None),
        ([LostRank(9, 0, "h0"), LostRank(9, 1, "h0")], {"h0": 1}, LostRank(9, 1, "h0")),
        ([LostRank(9, 0, "h0"), LostRank(9, 1, "h1")], {"h0": 0, "h1": 1}, LostRank(9)),
        ([LostRank(9, 0, "h0"), LostRank(11, 1, "h1")], {"h0": 0, "h1": 1}, LostRank(11, 1, "h1")),
        ([LostRank(9, host="h1")], {"h1": 1}, LostRank(9, 1, "h1")),
        ([LostRank(9, host="h1")], {}, LostRank(9, host="h1")),
    ],
    ids=["none", "one host", "several hosts", "another signal", "rank from the host", "unknown rank"],
)
def test_who_was_killed(killed: list[LostRank], first_ended: dict[str, int | None], first: LostRank | None) -> None:
    assert first_killed(killed, first_ended) == first


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a job of `cpudist launch` that this process belongs to."""
    job = uuid.uuid4().hex
    monkeypatch.setenv(JOB_ID, job)
    yield job
    _file(job).unlink(missing_ok=True)


def _file(job: str) -> Path:
    return Path(f"/tmp/cpudist-failure-{job}.txt")


def test_the_first_report_of_a_host_is_read_once(job: str) -> None:
    for ranks in ([], [3, 1], [2]):
        tell_launch(ranks)
    assert _file(job).stat().st_mode & 0o777 == 0o600
    assert [told(job), told(job)] == [[3, 1], []]


def test_what_is_no_report_of_this_user_is_not_believed(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in ("", "{", "1, 2\n", "one\n", '{"ranks": [1]}\n', "3 1"):  # the last one is incomplete
        _file(job).write_text(content)
        assert told(job) == []
    _file(job).unlink()
    (tmp_path / "report").write_text("1\n")
    _file(job).symlink_to(tmp_path / "report")
    tell_launch([2])
    assert told(job) == [], "a link"
    assert (tmp_path / "report").read_text() == "1\n"
    _file(job).unlink()
    tell_launch([1])
    if os.getuid() == 0:
        os.chown(_file(job), 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert told(job) == []
