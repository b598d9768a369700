"""Checking hosts: this one for real, under a wrong name, and what would be wrong with others."""

import socket
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

import pytest
from clocks import Clock
from hypothesis import given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.findings import Finding
from cpudist.hosts import check as module
from cpudist.hosts.check import check_hosts
from cpudist.hosts.connections import Trial, judge_networks, partners, unconnected
from cpudist.hosts.facts import Facts, _connect, facts
from cpudist.launchers.mpi_launcher import Host
from cpudist.topology.identity import free_port

RANKS = {"socket": 1, "numa": 2, "l3": 4, "default": 2}
VERSIONS = {"python": "3.11.7", "cpudist": "0.1.0 (a)", "torch": "2.13.0", "transformers": "5.24.0"}
FACTS = Facts("a", VERSIONS, 8, 0.0, 8 << 30, True, RANKS, "a")


@pytest.mark.job
def test_this_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = check_hosts([Host("localhost", 1)])
    assert checked.of_level("error") == []
    (found,) = checked.facts.values()
    assert found.skew == 0
    assert found.versions["torch"] == version("torch")
    assert found.ranks.keys() == RANKS.keys()
    (tmp_path / "probe").touch()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 40000 10.0.0.2 22")
    reported = facts(str(tmp_path), "", str(tmp_path / "probe"))
    assert (reported.shared, reported.address) == (True, "10.0.0.2")
    monkeypatch.setattr("cpudist.hosts.facts.free_shared_memory", lambda: 1 << 20)
    reported = facts(str(tmp_path), "", str(tmp_path / "elsewhere"), interface="nosuch0")
    assert not reported.shared
    assert any(one.level == "error" and "/dev/shm" in one.message for one in reported.findings)
    (network,) = [one for one in reported.findings if one.about == "network"]
    assert network.message.startswith("no network interface nosuch0 ")


def test_a_host_that_cannot_connect_says_to_which_address_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _connect(["127.0.0.1"], free_port(), "").endswith(": Connection refused")
    assert "nosuchhost.invalid port" in _connect(["nosuchhost.invalid"], 1, "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not _connect(["nosuchhost.invalid", "127.0.0.1"], port, "")
        two, look_up = ["127.0.0.1", "127.0.0.2"], socket.getaddrinfo

        def looked_up(name: str, *rest: object, **kind: object) -> list[object]:
            return [entry for one in (two if name == "h0" else [name]) for entry in look_up(one, *rest, **kind)]

        monkeypatch.setattr(socket, "getaddrinfo", looked_up)
        assert not _connect(["h0"], port, "")
        two.reverse()  # Hydra does not try the second address
        assert _connect(["h0"], port, "").startswith(f"127.0.0.2 port {port}: ")
        assert "no network interface nosuch0" in _connect(["127.0.0.1"], port, "nosuch0")


def test_waiting_for_hosts(clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One is up at once, one after 2 s; they are not asked again."""
    asked: list[str] = []

    async def why_not_up(host: Host) -> str:
        asked.append(host.name)
        return "" if clock.now >= up[host.name] else f"{host.name} is away"

    clock.drives(module)
    monkeypatch.setattr(module, "_why_not_up", why_not_up)
    up = {"h0": clock.now, "h1": clock.now + 2, "h2": clock.now + 5}
    hosts = [Host(name) for name in up]
    module.wait_for(hosts[:2], 2.5)
    assert (asked, clock.slept) == (["h0", "h1", "h1", "h1"], [1, 1])
    assert capsys.readouterr().err == "cpudist: waiting up to 2.5 s for h1\n"
    with pytest.raises(UserError, match=r"^after 1 s, h2 is away$"):
        module.wait_for(hosts, 1)


HOSTS = here, h0, h1, h2, h3 = [Host(name) for name in ("this", "h0", "h1", "h2", "h3")]


@pytest.mark.parametrize(
    ("failed", "about", "says"),
    [
        ([], "", ""),
        ([(h1, h2)], "h2", "does not let h1 connect"),
        ([(h1, h2), (h2, h1)], "h2", "cannot connect to h1 at h2 h1"),
        # A host whose network is another one, or whose ports are closed, is named alone.
        ([(h1, other) for other in HOSTS[::-1]] + [(other, h1) for other in HOSTS], "h1", "to this host at h1 this"),
        ([(other, h1) for other in HOSTS], "h1", "does not let this host connect"),
        ([(h0, h2), (h1, h2), (h3, h2)], "h2", "does not let h0, h1"),
        ([(h1, here), (h3, here)], "h3 h1", "cannot connect to this host at "),
    ],
)
def test_one_fault_of_the_network_gives_one_finding(failed: list[tuple[Host, Host]], about: str, says: str) -> None:
    why = {(one, other): f"{one.name} {other.name}" for one, other in failed if one != other}
    found = list(unconnected(why, HOSTS))
    assert [host.name for host, _ in found] == about.split()
    assert all(says in finding.message and "ip route" in finding.remedy for _, finding in found)


@pytest.mark.parametrize(
    ("of_h0", "of_h1", "dead", "only", "remedy"),
    [
        ("eth0 eth1", "eth0 eth1", "", None, ""),
        ("eth0 eth1", "eth0 eth1", "eth1", "eth0", "uses only eth0"),
        ("eth0 docker0", "eth0", "docker0", "eth0", "uses only eth0"),
        ("eth0 eth1 eth2", "eth0 eth1 eth2", "eth1", None, "choose one by --interface eth0 or eth2"),
        ("eth0 eth1", "ens3 eth1", "eth1", None, "ip link set eth1 down"),
    ],
)
def test_an_interface_is_chosen_where_one_alone_connects(
    of_h0: str, of_h1: str, dead: str, only: str | None, remedy: str
) -> None:
    ends = [(h1, h0, name) for name in of_h0.split()] + [(h0, h1, name) for name in of_h1.split()]
    found, chosen = judge_networks([Trial(*end, "10.0.0.1: refused" * (end[2] == dead)) for end in ends])
    assert ([one.about for one in found], chosen) == ([f"interface {dead}"] if dead else [], only)
    assert all(remedy in one.remedy for one in found)


@given(st.integers(2, 2000))
def test_many_hosts_connect_in_a_number_that_grows_slowly(count: int) -> None:
    connections = [partners(own, count) for own in range(count)]
    assert all(own not in others and set(others) <= {*range(count)} for own, others in enumerate(connections))
    assert all(0 in others for others in connections[1:]), "all reach the host that starts the job"
    assert max(map(len, connections)) <= max(31, 1 + count.bit_length())
    assert {other for others in connections for other in others} == {*range(count)}, "all are tried"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {**VERSIONS, "torch": "2.8.0"}}, "error has torch 2.8.0, this host 2.13.0"),
        ({"versions": {**VERSIONS, "torch": None}}, "error has no torch"),
        ({"versions": {**VERSIONS, "cpudist": "0.1.0 (b)"}}, "error has cpudist 0.1.0 (b), this host 0.1.0 (a)"),
        ({"versions": {**VERSIONS, "transformers": "4.57"}}, "warning has transformers 4.57"),
        ({"script": None}, "error has no train.py"),
        ({"script": "b"}, "error has another train.py than this host"),
        ({"shared": False}, "warning has a folder"),
        ({"folder": False, "shared": False}, "error has no folder"),
        ({"memory": 100 << 20}, "error has 100 MB of free memory, but 4 ranks need at least 1.56 GB"),
        ({"skew": -120.0}, "warning has a clock that is -120 s off ours"),
        ({"findings": [Finding("warning", "CPU quota", "a quota of 0.08 CPUs")]}, "warning has a quota of 0.08 CPUs"),
        ({}, ""),
    ],
)
def test_what_is_wrong_with_a_host(changes: dict[str, object], words: str) -> None:
    found = module._judge(Host("h1", 4), replace(FACTS, **changes), FACTS, "train.py")
    assert " ".join(f"{one.level} {one.message}" for one in found).startswith(words)
    assert len(found) == bool(words)
    assert all(one.about.endswith("h1") for one in found)
    assert "findings" in changes or all(one.remedy for one in found)


@pytest.mark.parametrize(
    ("cores", "slots", "unlike"),
    [((8, 8, 4), None, "h2"), ((4, 8), None, "h0"), ((8, 8, 4), (4, 4, 2), ""), ((8, 8, 8), (2, 1, 1), "h0")],
)
def test_a_host_whose_ranks_have_more_or_fewer_cores(
    cores: tuple[int, ...], slots: tuple[int, ...] | None, unlike: str
) -> None:
    hosts = [Host(f"h{number}", slots and slots[number]) for number in range(len(cores))]
    found = dict(module._unlike({host: replace(FACTS, cores=n) for host, n in zip(hosts, cores, strict=True)}))
    assert " ".join(host.name for host in found) == unlike
    assert all(one.level == "warning" and one.remedy for one in found.values())


def test_a_clock_is_off_only_beyond_the_time_of_the_answer() -> None:
    for seconds, skew in ((90.0, -10.0), (100.0, 0.0), (104.0, 0.0), (110.0, 5.0)):
        found = replace(FACTS, seconds=seconds)
        assert module._facts(asdict(found), 100.0, 105.0) == replace(found, skew=skew)
