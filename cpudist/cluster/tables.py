"""The figures of a cluster as tables for a terminal."""

from collections.abc import Iterator, Sequence

from cpudist.cluster.cluster_figures import ClusterFigures
from cpudist.cluster.judgement import bits, least_share, slow_and_late
from cpudist.console import aligned, colored, size

_WIDTH = 80
_GOOD = 0.75  # links below this share of the usual bandwidth are yellow


def tables(figures: ClusterFigures) -> str:
    """Return a line for each host, the matrix of links, and the collectives."""
    hosts: list[Sequence[str]] = [("host", "cores", "float32", "bfloat16", "copy", "clock", "free")]
    for host in figures.hosts:
        clock = f"{host.clock / 1e9:.1f} GHz" if host.clock else "-"
        flops = [f"{host.flops[dtype] / 1e9:.0f} GFLOP/s" for dtype in ("float32", "bfloat16")]
        hosts.append((host.name, str(host.cores), *flops, f"{size(host.copied)}/s", clock, size(host.memory)))
    blocks = ["\n".join(aligned(hosts)), *(_matrix(figures) if figures.links else ())]
    times = ", ".join(f"{size(bytes)} {1e3 * seconds:.3g} ms" for bytes, seconds in figures.allreduces.items())
    blocks.append(f"allreduce on {figures.backend}: {times}\nloss of a small training: {figures.loss[0]:.6g}")
    return "\n\n".join(blocks)


def _matrix(figures: ClusterFigures) -> Iterator[str]:
    """Yield a matrix of the links' bandwidths, with slow links in red. It is left out if it is too wide."""
    least = least_share(figures.hosts)
    usual = slow_and_late(figures.links, figures.hosts)[2].bandwidth
    cells = {(link.source, link.target): _cell(link.bandwidth / usual, least) for link in figures.links}
    numbers = range(len(figures.hosts))
    names = aligned([(str(1 + number), host.name) for number, host in enumerate(figures.hosts)])
    first = max(map(len, names))
    lines = [f"links in % of {bits(usual)}, from the host of a line to that of a column"]
    lines.append(" " * first + "".join(f"{1 + number:4}" for number in numbers))
    for source, name in enumerate(names):
        lines.append(f"{name:{first}}" + "".join(cells.get((source, target), "    ") for target in numbers))
    if first + 4 * len(numbers) <= _WIDTH:
        yield "\n".join(lines)


def _cell(share: float, least: float) -> str:
    level = "error" if share < least else "warning" if share < _GOOD else "ok"
    return colored(f"{100 * share:4.0f}", level)
