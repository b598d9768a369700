"""Describe a timeline in words: how the ranks spent their time, which rank they waited for, and what to try first."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cpudist.observability.trace_events import Event, collectives

# Activities of a rank, stored as a byte for each moment. If two overlap, the later one in this list counts.
_ALL = "Python and others"
_PARTS = (_ALL, "communicating", "computing", "loading data", "optimizer", "waiting")
_BYTES = {part: bytes([number]) for number, part in enumerate(_PARTS, 1)}
_MOMENTS = 1_000_000
_STARTS = {"step ": _ALL, "Optimizer.step#": "optimizer", "enumerate(DataLoader)": "loading data"}
_STARTS |= dict.fromkeys(("autograd::", "torch::autograd::", "c10d::", "_c10d_functional::"), "")  # ignored spans
_OPERATORS = 5  # Report so many operators.

# Part of the time, its threshold in percent, and what to try first above the threshold.
_ADVICE = (
    ("waiting", 10, "find out why {slow} is late (cpudist docs placement)"),
    ("loading data", 10, "more processes that load data (num_workers of the DataLoader)"),
    ("communicating", 20, "fewer bytes: --compress, or gradients of several batches (cpudist docs slow-networks)"),
    ("optimizer", 20, "a fused optimizer (fused=True, or cpudist.optimize)"),
    ("Python and others", 30, "larger batches"),
    ("computing", 0, "bfloat16 (cpudist.optimize)"),
)


def report(events: Sequence[Event], names: Mapping[int, str]) -> list[str]:
    shares, waited = divide(events)
    total = sum(event["dur"] for event in events if _part(event) == _ALL)
    slow, most = waited.most_common(1)[0] if waited else (min(names), 0.0)
    lines = [", ".join(f"{part} {share:.0f} %" for part, share in shares.most_common())]
    lines.append(f"waiting for {names[slow]} {most:.0f} %, for others {waited.total() - most:.0f} %")
    operators = _outermost(events).most_common(_OPERATORS)
    lines += [f"{name} {100 * seconds / total:.0f} %" for name, seconds in operators]
    advice = next(advice for part, least, advice in _ADVICE if shares[part] >= least)
    return [*lines, f"try first: {advice.format(slow=names[slow])}"]


def divide(events: Iterable[Event]) -> tuple[Counter[str], Counter[int]]:
    """Return the percentage of time for each activity, and for each rank the percentage that others waited for it.

    A rank waits while it does nothing but communicate, until the last rank has made the same call.
    """
    found = defaultdict(list)
    for event in events:
        found[_part(event)].append(event)
    begin = min(event["ts"] for event in found[_ALL])
    length = max(event["ts"] + event["dur"] for event in found[_ALL]) - begin
    rows = {event["pid"]: bytearray(_MOMENTS) for event in found[_ALL]}

    def moments(event: Event, end: float = math.inf) -> slice:
        times = event["ts"], min(event["ts"] + event["dur"], end)
        return slice(*(min(max(time - begin, 0) * _MOMENTS // length, _MOMENTS) for time in times))

    for part in _PARTS:
        for event in found[part]:
            where = moments(event)
            rows[event["pid"]][where] = _BYTES[part] * (where.stop - where.start)
    waited = Counter[int]()
    for *early, last in collectives(found["communicating"]):
        for call in early:
            row, where = rows[call["pid"]], moments(call, last["ts"])
            waited[last["pid"]] += row.count(_BYTES["communicating"], where.start, where.stop)
            row[where] = row[where].replace(_BYTES["communicating"], _BYTES["waiting"])
    total = sum(_MOMENTS - row.count(0) for row in rows.values())
    shares = {part: 100 * sum(row.count(byte) for row in rows.values()) / total for part, byte in _BYTES.items()}
    return Counter(shares), Counter({rank: 100 * count / total for rank, count in waited.items()})


def _outermost(events: Iterable[Event]) -> Counter[str]:
    """Return the time in the outermost operators."""
    times, ends = Counter[str](), Counter[tuple[int, int]]()
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        name, thread = event["name"], (event["pid"], event["tid"])
        if _part(event) == "computing" and event["ts"] >= ends[thread]:
            ends[thread] = event["ts"] + event["dur"]
            times[name] += event["dur"]
    return times


def _part(event: Event) -> str:
    """Return the activity of a rank during a span."""
    name = event["name"]
    other = "communicating" if "args" in event else "computing" if "::" in name else ""
    return next((part for start, part in _STARTS.items() if name.startswith(start)), other)
