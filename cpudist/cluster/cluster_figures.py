"""The figures of a cluster, and the file that keeps those of the last time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cpudist import user_cache


@dataclass(frozen=True)
class HostFigures:
    """Figures of one host.

    Attributes:
        versions: of Python, torch and cpudist.
        cores: on which the rank computes.
        flops: floating-point operations a second in a product of matrices, by type.
        copied: bytes a second that a copy reads and writes.
        load: processes that ran or waited on each CPU, over a minute before.
        clock: in Hz; None where the kernel does not say.
        memory: free bytes.
        shared_memory: free bytes of /dev/shm.
        shares_folder: whether it has rank 0's working folder.
    """

    name: str
    versions: Mapping[str, str]
    cores: int
    flops: Mapping[str, float]
    copied: float
    load: float
    clock: float | None
    memory: int
    shared_memory: int
    shares_folder: bool

    def best(self, again: HostFigures) -> HostFigures:
        """Return the best speeds of two measurements: other programs disturb each figure at another time."""
        flops = {dtype: max(flops, again.flops[dtype]) for dtype, flops in self.flops.items()}
        return replace(again, flops=flops, copied=max(self.copied, again.copied))


@dataclass(frozen=True)
class LinkFigures:
    """Messages from one host to another.

    Attributes:
        source, target: numbers of the hosts.
        latency: seconds for a small message, half of a round trip.
        bandwidth: bytes a second of large messages.
    """

    source: int
    target: int
    latency: float
    bandwidth: float


@dataclass(frozen=True)
class ClusterFigures:
    """Figures of all hosts of a job.

    Attributes:
        hosts: in the order of their first ranks.
        links: between all pairs of hosts, in both directions.
        allreduces: seconds of an allreduce over all ranks, by bytes.
        loss: of a small training on all ranks, and of the same in one process.
        backend: such as "ccl over mpi".
        measured_at: the time, in ISO 8601.
    """

    hosts: list[HostFigures]
    links: list[LinkFigures]
    allreduces: dict[int, float]
    loss: tuple[float, float]
    backend: str
    measured_at: str

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ClusterFigures:
        """Return the figures from the fields of a JSON file.

        Raises:
            ValueError: they are none.
        """
        try:
            return cls(
                **{
                    **fields,
                    "hosts": [HostFigures(**host) for host in fields["hosts"]],
                    "links": [LinkFigures(**link) for link in fields["links"]],
                    "allreduces": {int(size): seconds for size, seconds in fields["allreduces"].items()},
                    "loss": tuple(fields["loss"]),
                }
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not the figures of a cluster: {error!r}") from None


def last_time(now: ClusterFigures) -> ClusterFigures | None:
    """Return the last figures of these hosts with as many cores; None where there are none."""
    try:
        return ClusterFigures.from_json(user_cache.read(_file(now)))
    except ValueError:
        return None


def last_bandwidth() -> float | None:
    """Return the bytes a second at which large sums crossed the network in the last test of several hosts, if any."""
    folder = user_cache.cache_folder()
    kept = [user_cache.read(file.name) or {} for file in (folder.glob("cluster-*.json") if folder else [])]
    for fields in sorted(kept, key=lambda fields: fields.get("measured_at", ""), reverse=True):
        if (hosts := len(fields.get("hosts", ()))) > 1:
            *_, less, more = sorted((int(size), seconds) for size, seconds in fields["allreduces"].items())
            return 2 * (hosts - 1) / hosts * (more[0] - less[0]) / float(more[1] - less[1])
    return None


def keep(now: ClusterFigures) -> None:
    """Keep the figures for the next time.

    Raises:
        UserError: they cannot be written.
    """
    user_cache.write(_file(now), asdict(now))


def _file(figures: ClusterFigures) -> str:
    # With other cores, such as two ranks on a host, a host has other figures.
    hosts = "\n".join(f"{host.name} {host.cores}" for host in figures.hosts)
    return f"cluster-{hashlib.sha256(hosts.encode()).hexdigest()[:16]}.json"
