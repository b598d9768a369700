"""Find hosts and links that are slower than the others, and hosts with another configuration."""

import statistics
from collections.abc import Iterator, Sequence

from cpudist.bench.cluster_figures import ClusterFigures, HostFigures, LinkFigures
from cpudist.console import number_of, size
from cpudist.findings import Finding

_LATE_LINK = 5.0  # a link above this multiple of the usual latency is late
_SLOW_CLOCK = 0.9
_LATENCY = 1e-3  # seconds; a lower latency costs a training nothing
_SHARED_MEMORY = 64 << 20  # bytes; data workers need more
_LOSS = 1e-3  # relative tolerance, because ranks add in another order than one process


def judge(now: ClusterFigures) -> list[Finding]:
    return [*_versions(now.hosts), *_loss(now), *slow_hosts(now.hosts), *_hosts(now.hosts), *_links(now)]


def least_share(hosts: Sequence[HostFigures], quiet: float = 0.5, busy: float = 0.33) -> float:
    """Return the share of the usual speed below which a host or link is slow: `busy` if most hosts are busy."""
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
    """Yield a finding for each host that computes or copies slowly, with the cause if the figures show one."""
    least = least_share(hosts, 0.75, 0.5)
    speeds = [{**host.flops, "copying memory": host.copied} for host in hosts]
    usual = {what: statistics.median_high(speed[what] for speed in speeds) for what in speeds[0]}
    for host, speed in zip(hosts, speeds, strict=True):
        shares = {what: speed[what] / usual[what] for what in usual}
        if slow := [f"{share:.2f} in {what}" for what, share in shares.items() if share < least]:
            cause, remedy = _cause(host, hosts)
            if not cause and min(shares, key=lambda what: shares[what]) not in host.flops:
                remedy = "look for another program, or an empty memory slot"
            speeds_of_others = ", ".join(slow).replace(" in ", " of the others' speed in ", 1)
            yield Finding("warning", host.name, f"has {speeds_of_others}{cause}", remedy)


def is_starved(host: HostFigures) -> bool:
    """Return whether a CPU quota leaves a host less than one CPU; its messages are then late, too."""
    return host.quota is not None and host.quota < 1


def _hosts(hosts: Sequence[HostFigures]) -> Iterator[Finding]:
    for host in hosts:
        if not host.shares_folder:
            message = f"does not share the working folder of {hosts[0].name}: checkpoints need a shared folder"
            yield Finding("warning", host.name, message, "share one by NFS, or save in a folder that is shared")
        if host.shared_memory < _SHARED_MEMORY:
            message = f"has {size(host.shared_memory)} free in /dev/shm"
            remedy = "delete what fills it, or give more: mount -o remount,size=2G /dev/shm"
            yield Finding("warning", host.name, message, remedy)


def _cause(host: HostFigures, hosts: Sequence[HostFigures]) -> tuple[str, str]:
    """Return why a host is slower, as far as the figures show it, and the remedy."""
    waits = "every step waits for it: mend it, or leave it out"
    cores = statistics.median(other.cores for other in hosts)
    if is_starved(host) or (host.quota is not None and host.quota < cores):
        return f": a quota of {host.quota:g} CPUs", "raise it: limits.cpu, docker --cpus, systemd's CPUQuota"
    if host.cores < cores:
        return f": on {number_of(host.cores, 'core')} where others have {cores:g}", waits
    clocks = [other.clock for other in hosts if other.clock is not None]
    if host.clock is not None and host.clock < _SLOW_CLOCK * statistics.median(clocks):
        clock = f": its clock is {host.clock / 1e9:.1f} GHz, that of others {statistics.median(clocks) / 1e9:.1f}"
        return clock, "look at its cooling and its power settings: cpupower frequency-info"
    if host.load > max(1.0, 2 * statistics.median_low(other.load for other in hosts)):
        return f": {host.load:.1f} programs wait for each of its CPUs", "end them, or leave it out"
    return "", waits


def slow_and_late(
    links: Sequence[LinkFigures], hosts: Sequence[HostFigures]
) -> tuple[list[LinkFigures], list[LinkFigures], LinkFigures]:
    """Return the slow links, the late links, and a link with the usual figures. Links of starved hosts do not count."""
    starved = {number for number, host in enumerate(hosts) if is_starved(host)}
    links = [one for one in links if not {one.source, one.target} & starved] or links
    # Take the median over each host's best link, because one host with slow links slows a link of every host.
    by_host = [[one for one in links if number in (one.source, one.target)] for number in {one.source for one in links}]
    bandwidth = statistics.median(max(link.bandwidth for link in own) for own in by_host)
    latency = statistics.median(min(link.latency for link in own) for own in by_host)
    slow = [link for link in links if link.bandwidth < least_share(hosts) * bandwidth]
    late = [link for link in links if link.latency > max(_LATE_LINK * latency, _LATENCY)]
    return slow, late, LinkFigures(0, 0, latency, bandwidth)


def _links(now: ClusterFigures) -> Iterator[Finding]:
    """Yield a finding for each host whose links are all slow or late, and for each other pair with such a link."""
    if len(now.hosts) < 3:  # there is no other link to compare with
        return
    slow, late, usual = slow_and_late(now.links, now.hosts)

    def fault(about: str, links: Sequence[LinkFigures], way: str, where: str = "") -> Finding:
        if any(link in slow for link in links):
            remedy = f"others have {bits(usual.bandwidth)}: look at its cable and switch port"
            return Finding("warning", about, f"{way}{bits(max(link.bandwidth for link in links))}{where}", remedy)
        times = [f"{1e6 * latency:.0f}" for latency in (min(link.latency for link in links), usual.latency)]
        message = f"a message takes {times[0]} us{where} where others take {times[1]}"
        return Finding("warning", about, message, "look for a slower route, or for other traffic")

    left = [*slow, *(link for link in late if link not in slow)]
    ends = [
        (max(link.bandwidth for link in own), host.name, way, own)
        for number, host in enumerate(now.hosts)
        for way, end in (("sends", "source"), ("receives", "target"))
        if len(own := [link for link in now.links if getattr(link, end) == number]) > 1
    ]
    hosts: dict[str, dict[str, list[LinkFigures]]] = {}
    for _, name, way, own in sorted(ends, key=lambda one: one[0]):
        if all(link in left for link in own):
            left = [link for link in left if link not in own]
            hosts.setdefault(name, {})[way] = own
    for name, ways in hosts.items():
        yield fault(
            name,
            [link for own in ways.values() for link in own],
            f"{' and '.join(sorted(ways, reverse=True))} at most ",
            " on all of its links",
        )
    pairs: dict[frozenset[int], list[LinkFigures]] = {}
    for link in left:
        pairs.setdefault(frozenset((link.source, link.target)), []).append(link)
    for links in pairs.values():
        source, target = (now.hosts[number].name for number in (links[0].source, links[0].target))
        yield fault(f"{source} {'to' if len(links) == 1 else 'and'} {target}", links, "")


def bits(bandwidth: float) -> str:
    """Return bytes a second as bits, such as ``941 Mbit/s``."""
    value = 8 * bandwidth
    return f"{value / 1e9:.3g} Gbit/s" if value >= 1e9 else f"{value / 1e6:.3g} Mbit/s"
