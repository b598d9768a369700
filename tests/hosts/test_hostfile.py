"""Hostfiles: every form is understood, everything wrong is found with its line, and launchers read what is written."""

import ipaddress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cpudist.errors import UserError
from cpudist.hosts.hostfile import parse, read, shares, spread
from cpudist.launchers.mpi_launcher import Host

# What is wrong is in the last line.
WRONG = "h0\nh1:abc|h0:|h0:0|h0:-1|h0 slots=\u0663|h0 slots=1e3|h0 slots=|h0 4|h0 max_slots=4|h0 slots=4 h1"
WRONG += "|h0:4 slots=4|h0,h1|node[0-3]|user@h0|-h0|h0..local|10.0.0.256|10.0.1|4|fd00::zz|1:2:3:4:5:6:7:8:4"
WRONG += "|h0 share=1|h0 share=0|[fd00::zz]:4|[h0]:4|fe80::1%$(reboot)|node\u212a|# a\n\n[::1] 4"
TWICE = ["h0\n#\n H0:2", "fd00::1\n[fd00:0::1]:2", "h0\rh1\rh0"]


@pytest.mark.parametrize("text", ["", "# h0\n\n   \n", *WRONG.split("|"), *TWICE])
def test_what_is_wrong_is_said_with_its_line(text: str) -> None:
    with pytest.raises(UserError, match="hosts") as caught:
        parse(text, "hosts")
    *before, last = text.replace("\r", "\n").split("\n")
    if text in WRONG.split("|"):
        assert f"hosts, line {len(before) + 1}: {last.strip()!r} is not understood" in str(caught.value)
    elif text in TWICE:
        assert f"line {len(before) + 1}: " in str(caught.value)
        assert "is already in line 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not there, a folder, a program, one from Windows, and those of PBS, which repeat hosts."""
    hosts = tmp_path / "hosts"
    hosts.write_bytes(b"\x7fELF\xff\xfe\x00")
    for name in ("nothing", ".", "hosts"):
        with pytest.raises(UserError, match="hostfile"):
            read(tmp_path / name)
    hosts.write_bytes(b"\xef\xbb\xbfh0:2\r\nh1:2\r\n")
    found = read(hosts)
    assert (found, found[1].where) == ([Host("h0", 2), Host("h1", 2)], f"{hosts}, line 2")
    monkeypatch.setenv("PBS_NODEFILE", str(hosts))
    for text, slots in (("x1\nx2\n", None), ("x1\nx1\nx2\nx2\n", 2)):
        hosts.write_text(text)
        assert read(hosts) == [Host("x1", slots), Host("x2", slots)]
    for file in (Path(__file__).parents[2] / "hostfiles").iterdir():
        assert read(file) == [Host("node0", 2), Host("node1", 2)]


def test_shares_of_hosts() -> None:
    """Hosts without one divide the rest; a hostfile without any gives none."""
    hosts = parse("h0:2\nh1 slots=2 share=0.3\nh2:1 share = .1")
    assert shares(hosts) == pytest.approx([0.6, 0.3, 0.1])
    assert shares(parse("h0\nh1\nh2 share=.5")) == pytest.approx([0.25, 0.25, 0.5])
    assert shares(parse("h0:2\nh1:2")) == []
    for text in ("h0:1\nh1:1 share=0.6\nh2:1 share=0.4", "h0:1 share=0.6\nh1:1 share=0.6"):
        with pytest.raises(UserError, match="line"):
            shares(parse(text))


labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
names = st.lists(labels, min_size=1, max_size=3).map(".".join).filter(lambda name: not name.split(".")[-1].isdigit())
addresses = st.ip_addresses().map(str) | st.just("fe80::1%eth0")
slots = st.integers(1, 99)


def lists_of(slots: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[Host]]:
    one = st.builds(Host, names | addresses, slots)
    return st.lists(one, min_size=1, max_size=8, unique_by=lambda host: host.name)


spaces = st.text(" \t", max_size=3)
comments = st.one_of(st.just(""), st.text(st.characters(exclude_characters="\n\r"), max_size=9).map("#{}".format))


@given(lists_of(st.none() | slots), st.data())
def test_however_it_is_spelled(hosts: list[Host], data: st.DataObject) -> None:
    lines = []
    for host in hosts:
        lines += data.draw(st.lists(st.tuples(spaces, comments).map("".join), max_size=2))
        ipv6 = ":" in host.name
        name = data.draw(st.sampled_from([f"[{host.name}]", host.name] if ipv6 else [host.name, host.name.upper()]))
        short = not ipv6 or name != host.name
        forms = [f":{host.slots}"] * short + [f" slots={host.slots}", f"\tslots = {host.slots}"]
        number = data.draw(st.sampled_from(forms)) if host.slots else ""
        lines.append(data.draw(spaces) + name + number + data.draw(spaces) + data.draw(comments))
    ends = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    parsed = parse(ends.join(lines))
    assert [(host.name.lower(), host.slots) for host in parsed] == [(host.name, host.slots) for host in hosts]


@given(st.text(st.sampled_from("h01.:-[]%#=slots \t\n\r\u0663\0"), max_size=40))
@example("h0\x0bh1")
def test_no_text_is_taken_for_what_it_is_not(text: str) -> None:
    """Any text is refused, or read as distinct names or addresses that are read alike when written again."""
    try:
        hosts = parse(text)
    except UserError:
        return
    for host in hosts:
        if ":" in host.name:
            ipaddress.IPv6Address(host.name)
        else:
            assert host.name.isascii()
            assert not set(host.name) & set(" #=[]%:\0")
    again = [f"{host.name} slots={host.slots}" if host.slots else host.name for host in hosts]
    assert parse("\n".join(again)) == hosts


@given(lists_of(slots) | lists_of(st.none() | slots), st.none() | st.integers(1, 200), st.none() | st.integers(1, 99))
def test_spread_fills_in_order_or_refuses(hosts: list[Host], ranks: int | None, per_host: int | None) -> None:
    room = [per_host or host.slots or 0 for host in hosts]
    words = "the number of ranks on .* is missing" if 0 in room else ""
    if any(host.slots and per_host and per_host > host.slots for host in hosts):
        words = f"and --ppn asks for {per_host}"
    elif not words and sum(room) < (ranks or 0):
        words = f"{ranks} ranks do not fit on {len(hosts)} hosts with room for {sum(room)}"
    if words:
        with pytest.raises(UserError, match=words):
            spread(hosts, ranks, per_host)
        return
    placed = spread(hosts, ranks, per_host)
    assert [host.name for host in placed] == [host.name for host in hosts[: len(placed)]]
    assert sum(host.slots for host in placed) == (ranks or sum(room))
    assert [host.slots for host in placed[:-1]] == room[: len(placed) - 1]
    assert placed[-1].slots <= room[len(placed) - 1]
