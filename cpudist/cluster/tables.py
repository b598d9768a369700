"""The figures of a cluster as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from cpudist.cluster.cluster_figures import ClusterFigures
from cpudist.console import aligned, size


def tables(figures: ClusterFigures) -> str:
    """Return a line for each host, the matrix of links, and the collectives."""
    hosts: list[Sequence[str]] = [("host", "cores", "float32", "bfloat16", "copy", "clock", "free")]
    for host in figures.hosts:
        clock = f"{host.clock / 1e9:.1f} GHz" if host.clock else "-"
        flops = [f"{host.flops[dtype] / 1e9:.0f} GFLOP/s" for dtype in ("float32", "bfloat16")]
        hosts.append((host.name, str(host.cores), *flops, f"{size(host.copied)}/s", clock, size(host.memory)))
    blocks = ["\n".join(aligned(hosts))]
    matrix = aligned(_matrix(figures))
    if len(matrix) > 2 and max(map(len, matrix)) <= 80:  # otherwise links that are out of line are named alone
        blocks.append("\n".join(["links in Mbit/s, from the host of a line to that of a column", *matrix]))
    times = ", ".join(f"{size(bytes)} {1e3 * seconds:.3g} ms" for bytes, seconds in figures.allreduces.items())
    blocks.append(f"allreduce on {figures.backend}: {times}\nloss of a small training: {figures.loss[0]:.6g}")
    return "\n\n".join(blocks)


def _matrix(figures: ClusterFigures) -> list[tuple[str, ...]]:
    names = [host.name for host in figures.hosts]
    found = {(link.source, link.target): f"{8e-6 * link.bandwidth:.0f}" for link in figures.links}
    rows = [
        (name, *(found.get((source, target), "") for target in range(len(names)))) for source, name in enumerate(names)
    ]
    return [("", *names), *rows]
