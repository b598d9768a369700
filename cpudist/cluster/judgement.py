"""Find hosts and links that are slower than the others, and hosts with another configuration."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from cpudist.cluster.cluster_figures import ClusterFigures, HostFigures, LinkFigures
from cpudist.console import number_of, size
from cpudist.errors import Finding

_LATE_LINK = 5.0  # a link above this multiple of the usual latency is late
_SLOW_CLOCK = 0.9
_LATENCY = 1e-3  # seconds; a lower latency costs a training nothing
_SHARED_MEMORY = 64 << 20  # bytes; data workers need more
_LOSS = 1e-3  # relative tolerance, because ranks add in another order than one process


def judge(now: ClusterFigures) -> list[Finding]:
    """Return all findings, the worst first."""
    return [*_versions(now.hosts), *_loss(now), *slow_hosts(now.hosts), *_hosts(now.hosts), *_links(now)]


def least_share(hosts: Sequence[HostFigures], quiet: float = 0.5, busy: float = 0.33) -> float:
    """Return the share of the usual speed below which a host or link is slow. `busy` applies if most hosts are busy."""
    return quiet if statistics.median_low(host.load for host in hosts) <= 1 else busy


def _versions(hosts: Sequence[HostFigures]) -> Iterator[Finding]:
    for name in hosts[0].versions:
        usual = statistics.mode(host.versions[name] for host in hosts)
        for host in hosts:
            if (theirs := host.versions[name]) != usual:
                remedy = "install the same version on all hosts"
                yield Finding("error", host.name, f"has {name} {theirs}, the others {usual}", remedy)


def _loss(now: ClusterFigures) -> Iterator[Finding]:
    together, alone = now.loss
    if not abs(together - alone) <= _LOSS * abs(alone):
        message = f"a small training ends at {together:.6g} on all ranks, and at {alone:.6g} in one process"
        yield Finding("error", "training", message, "report it, with the figures of --json")


def slow_hosts(hosts: Sequence[HostFigures]) -> Iterator[Finding]:
    """Yield hosts that compute or copy slower than the others."""
    least = least_share(hosts, 0.75, 0.5)
    for dtype in hosts[0].flops:
        usual = statistics.median_high(host.flops[dtype] for host in hosts)
        for host in hosts:
            if (share := host.flops[dtype] / usual) < least:
                message = f"computes at {share:.2f} of the others in {dtype}{_cause(host, hosts)}"
                yield Finding("warning", host.name, message, "every step waits for it: mend it, or leave it out")
    usual = statistics.median_high(host.copied for host in hosts)
    for host in hosts:
        if (share := host.copied / usual) < least:
            message = f"copies memory at {share:.2f} of the others ({size(host.copied)}/s)"
            yield Finding("warning", host.name, message, "look for another program, or an empty memory slot")


def _hosts(hosts: Sequence[HostFigures]) -> Iterator[Finding]:
    for host in hosts:
        if not host.shares_folder:
            message = f"does not share the working folder of {hosts[0].name}: checkpoints need one"
            yield Finding("warning", host.name, message, "share one by NFS, or save in a folder that is shared")
        if host.shared_memory < _SHARED_MEMORY:
            message = f"has {size(host.shared_memory)} free in /dev/shm"
            remedy = "delete what fills it, or give more: mount -o remount,size=2G /dev/shm"
            yield Finding("warning", host.name, message, remedy)


def _cause(host: HostFigures, hosts: Sequence[HostFigures]) -> str:
    """Return why a host computes slower, as far as the figures show it."""
    cores = statistics.median(other.cores for other in hosts)
    if host.cores < cores:
        return f": on {number_of(host.cores, 'core')} where others have {cores:g}"
    clocks = [other.clock for other in hosts if other.clock is not None]
    if host.clock is not None and host.clock < _SLOW_CLOCK * statistics.median(clocks):
        return f": its clock is {host.clock / 1e9:.1f} GHz, that of others {statistics.median(clocks) / 1e9:.1f}"
    if host.load > max(1.0, 2 * statistics.median_low(other.load for other in hosts)):
        return f": {host.load:.1f} programs want each of its CPUs"
    return ""


def slow_and_late(
    links: Sequence[LinkFigures], least: float
) -> tuple[list[LinkFigures], list[LinkFigures], LinkFigures]:
    """Return the links below `least` of the usual bandwidth, the late links, and a link with the usual figures."""
    # Take the median over each host's best link, because one host with slow links slows a link of every host.
    by_host = [[one for one in links if number in (one.source, one.target)] for number in {one.source for one in links}]
    bandwidth = statistics.median(max(link.bandwidth for link in own) for own in by_host)
    latency = statistics.median(min(link.latency for link in own) for own in by_host)
    slow = [link for link in links if link.bandwidth < least * bandwidth]
    late = [link for link in links if link.latency > max(_LATE_LINK * latency, _LATENCY)]  # lists both directions
    return slow, [link for link in late if link.source < link.target], LinkFigures(0, 0, latency, bandwidth)


def _links(now: ClusterFigures) -> Iterator[Finding]:
    if len(now.hosts) < 3:  # there is no other link to compare with
        return
    slow, late, usual = slow_and_late(now.links, least_share(now.hosts))
    yield from _named(now, slow, f"others have {bits(usual.bandwidth)}: look at its cable and switch port")
    for link in late:
        about = _between(now, link, "and")
        message = f"a message takes {1e6 * link.latency:.0f} us where others take {1e6 * usual.latency:.0f}"
        yield Finding("warning", about, message, "look for a detour, or for other traffic")


def _named(now: ClusterFigures, slow: Sequence[LinkFigures], others: str) -> Iterator[Finding]:
    """Yield a finding for each slow link, or one for a host if all its links are slow in one direction."""
    left = list(slow)
    ends = [
        (max(link.bandwidth for link in own), host.name, way, own)
        for number, host in enumerate(now.hosts)
        for way, end in (("sends", "source"), ("receives", "target"))
        if len(own := [link for link in now.links if getattr(link, end) == number]) > 1
    ]
    for best, name, way, own in sorted(ends, key=lambda one: one[0]):
        if all(link in left for link in own):
            left = [link for link in left if link not in own]
            yield Finding("warning", name, f"{way} at most {bits(best)} on all of its links", others)
    for link in left:
        yield Finding("warning", _between(now, link, "to"), bits(link.bandwidth), others)


def _between(now: ClusterFigures, link: LinkFigures, word: str) -> str:
    return f"{now.hosts[link.source].name} {word} {now.hosts[link.target].name}"


def bits(bandwidth: float) -> str:
    """Return bytes a second as bits, such as ``941 Mbit/s``."""
    value = 8 * bandwidth
    return f"{value / 1e9:.3g} Gbit/s" if value >= 1e9 else f"{value / 1e6:.3g} Mbit/s"
