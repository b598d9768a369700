"""The figures of a cluster, and the file that keeps the bandwidth of its network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from cpudist import user_cache
from cpudist.observability import product_speed

_FILE = "network.json"  # in the user's cache folder
_EQUAL = 0.85  # Hosts with at least this share of the fastest host's speed count as equal.


@dataclass(frozen=True)
class HostFigures:
    """Figures of one host."""

    name: str
    versions: Mapping[str, str]  # versions of Python, torch and cpudist
    cores: int  # number of cores on which the rank computes
    flops: Mapping[str, float]  # floating-point operations per second in a matrix product, by number format
    copied: float  # bytes per second that a memory copy reads and writes
    quota: float | None  # CPU quota of its container, in CPUs; None without a limit
    load: float  # load average of the last minute, per CPU
    clock: float | None  # clock of a CPU in Hz; None where the kernel does not report it
    memory: int  # free bytes
    shared_memory: int  # free bytes of /dev/shm
    shares_folder: bool  # whether it shares rank 0's working folder

    def best(self, again: Self) -> Self:
        """Return the best speeds of two measurements, because other programs may disturb either of them."""
        flops = {dtype: max(flops, again.flops[dtype]) for dtype, flops in self.flops.items()}
        return replace(again, flops=flops, copied=max(self.copied, again.copied))


@dataclass(frozen=True)
class LinkFigures:
    """Latency of a small message (s) and bandwidth of large ones (bytes/s) from host number `source` to `target`."""

    source: int
    target: int
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class ClusterFigures:
    """Figures of all hosts of a job."""

    hosts: list[HostFigures]  # in the order of their first ranks
    links: list[LinkFigures]  # between all pairs of hosts, in both directions
    allreduces: dict[int, float]  # seconds of an allreduce over all ranks, by its size in bytes
    loss: tuple[float, float]  # last loss of a small training on all ranks, and of the same training in one process
    backend: str  # backend and transport, such as "ccl over mpi"

    @property
    def bandwidth(self) -> float | None:
        """Network bandwidth of large allreduces, in bytes per second; None on one host, or where noise hides it."""
        hosts = len(self.hosts)
        (less, early), (more, late) = sorted(self.allreduces.items())[-2:]
        return 2 * (hosts - 1) / hosts * (more - less) / (late - early) if hosts > 1 and late > early else None


def last_bandwidth() -> float | None:
    found = user_cache.read(_FILE).get("bandwidth")
    return found if isinstance(found, float) else None


def keep(now: ClusterFigures) -> None:
    """Store the network's bandwidth for `cpudist forecast`, and the hosts' speeds in matrix products for later jobs."""
    product_speed.save({host.name: (host.cores, host.flops) for host in now.hosts})
    if now.bandwidth is not None:
        user_cache.write(_FILE, {"bandwidth": now.bandwidth})


def proposed_shares(speeds: Mapping[str, float]) -> str:
    """Return shares for a hostfile in proportion to the speeds of hosts, by name; empty if they count as equal."""
    if min(speeds.values(), default=0.0) >= _EQUAL * max(speeds.values(), default=0.0):
        return ""
    return ", ".join(f"{name} share={speed / sum(speeds.values()):.2f}" for name, speed in speeds.items())
