"""Candidates that take turns on all ranks of a job, and a table of their times. Several benchmarks use it."""

from collections.abc import Mapping

import torch.distributed as dist

from cpudist import job
from cpudist.bench import report
from cpudist.bench.timing import Candidate, Timings, Turns, ratio, take_turns, together

_gloo: list[dist.ProcessGroup] = []  # collects the times, beside what is timed


def compare(title: str, candidates: Mapping[str, Candidate], turns: Turns, first: Timings | None = None) -> Timings:
    """Time all candidates on every rank; rank 0 prints the times and their multiples of those of the first one.

    Args:
        title: of the table.
        candidates: by name.
        turns: how they take turns.
        first: compare with these times instead, of an earlier table.

    Returns:
        The times that the others were compared with.
    """
    if not _gloo:
        _gloo.append(dist.new_group(backend="gloo"))
        _print(report.headline(report.environment(job.require())))
    timings = take_turns({name: together(one, _gloo[0]) for name, one in candidates.items()}, turns)
    of = first or next(iter(timings.values()))
    rows = [[name, report.time_cell(one), report.ratio_cell(ratio(one, of))] for name, one in timings.items()]
    _print(report.table([title, "time", "times the first"], rows))
    return of


def _print(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, end="\n\n", flush=True)
