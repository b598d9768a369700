"""Says who is missing, from what every rank says of itself: the sentences of a stall report and of the final error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpudist.backends.calls import Call
from cpudist.job.whereabouts import Whereabouts
from cpudist.machine.cpulist import format_list

Places = Mapping[int, Whereabouts | None]

_LINES = 3  # of each kind, so that the report of 1 000 ranks stays a few lines
_HOSTS = 3  # named where ranks of many are meant
_RUNS = 8  # of ranks that follow each other, in one sentence

# Calls that need tensors of one size on all ranks of the group.
_ONE_SIZE = {
    *("all_reduce", "broadcast", "reduce", "barrier", "all_gather", "all_gather_into_tensor", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor"),
}


def explain(places: Places, hosts: Sequence[str]) -> list[str]:
    """Who keeps the others waiting, in sentences, most likely cause first; none where no rank waits for another.

    Args:
        places: where each rank of the job is; None for one that does not answer.
        hosts: the host's name of each rank.
    """
    return _Report(places, hosts).sentences()


def summary(place: Whereabouts) -> str:
    """Where one rank is: in all_reduce #812 (16 MB, train.py:88) for 7.1 s"""
    if place.at_end:
        return "at the end of its script"
    if place.under_way:
        call = place.under_way[0]
        return f"in {_describe(call, place.line)} for {call.seconds:.1f} s"
    last = f", after {_describe(place.finished[0])}" if place.finished else ""
    return f"in {place.line or 'no line of Python'}{last}"


@dataclass(frozen=True)
class _Wait:
    """The oldest collective of a group that some of its ranks wait in: who does, and who has not come."""

    members: Sequence[int]
    waiting: Mapping[int, Call]
    missing: Sequence[int]  # of those that answer
    unclear: Sequence[int]  # they answer, and cannot say which calls they have made

    def silent(self, places: Places) -> list[int]:
        return [rank for rank in self.members if places[rank] is None]


class _Report:
    def __init__(self, places: Places, hosts: Sequence[str]) -> None:
        self.places = places
        self.hosts = hosts
        self.known = {rank: place for rank, place in places.items() if place is not None}
        self.waits = self._waits()

    def sentences(self) -> list[str]:
        kinds = [
            self._silent(),
            self._mismatches(),
            self._missing(),
            self._unclear(),
            self._messages(),
            self._nobody_missing(),
        ]
        return [sentence for kind in kinds for sentence in _few(kind)]

    def _waits(self) -> list[_Wait]:
        groups: dict[tuple[str, tuple[int, ...] | None], dict[int, Call]] = defaultdict(dict)
        for rank, place in self.known.items():
            for call in place.under_way:
                if call.sequence is not None:
                    groups[call.group, call.ranks].setdefault(rank, call)  # the oldest one
        return [self._wait(ranks, calls) for (_, ranks), calls in groups.items()]

    def _wait(self, ranks: tuple[int, ...] | None, calls: Mapping[int, Call]) -> _Wait:
        sequence = min(call.sequence or 0 for call in calls.values())
        waiting = {rank: call for rank, call in calls.items() if call.sequence == sequence}
        example = next(iter(waiting.values()))
        # No ranks: a group that is being destroyed.
        members = sorted(self.places if ranks is None else set(ranks or calls) & set(self.places))
        behind = [rank for rank in members if rank in self.known and self._reached(rank, example) < sequence]
        missing = [rank for rank in behind if self.known[rank].calls_known]
        return _Wait(members, waiting, missing, [rank for rank in behind if rank not in missing])

    def _reached(self, rank: int, example: Call) -> int:
        """The number of the newest collective in the group of `example` that the rank has called."""
        calls = (*self.known[rank].finished, *self.known[rank].under_way)
        return max((call.sequence or 0 for call in calls if _same_group(call, example)), default=0)

    def _silent(self) -> list[str]:
        silent = [rank for rank in self.places if rank not in self.known]
        if not silent:
            return []
        sentence = f"{self._name(silent)} {_verb(silent, 'does', 'do')} not answer: stopped, or the host is gone"
        wait = next((wait for wait in self.waits if wait.silent(self.places) and len(_kinds(wait)) == 1), None)
        if wait is not None:
            others = list(wait.waiting)
            sentence += f"; {self._name(others)} {_verb(others, 'waits', 'wait')} in {self._what(wait)}"
        return [sentence]

    def _mismatches(self) -> list[str]:
        sentences = []
        for wait in self.waits:
            kinds = _kinds(wait)
            if len(kinds) > 1:
                calls = [f"{self._name(ranks)} called {self._call(ranks[0], wait)}" for ranks in kinds]
                sentences.append(f"{_listed(calls)}: all ranks must make the same calls in the same order")
        return sentences

    def _missing(self) -> list[str]:
        """Those first that wait for nothing themselves."""
        alone: list[str] = []
        waiting: list[str] = []
        for wait in self.waits:
            by_place = defaultdict(list)
            for rank in wait.missing:
                by_place[self._place(rank), bool(self.known[rank].under_way)].append(rank)
            for (place, waits), ranks in by_place.items():
                it = _verb(ranks, "it was", "they were")
                sentence = f"{self._name(ranks)} never reached {self._what(wait)}; {it} {place}"
                (waiting if waits else alone).append(sentence)
        return alone + waiting

    def _unclear(self) -> list[str]:
        """A call that blocks inside a transport hides all others."""
        sentences = []
        for wait in self.waits:
            by_place = defaultdict(list)
            for rank in wait.unclear:
                by_place[self._place(rank)].append(rank)
            for place, ranks in by_place.items():
                it = _verb(ranks, "it was", "they were")
                sentences.append(
                    f"{self._name(ranks)} cannot say whether {_verb(ranks, 'it has', 'they have')} reached "
                    f"{self._what(wait)}, being inside the communication library; {it} {place}"
                )
        return sentences

    def _messages(self) -> list[str]:
        """Who waits to send or to receive; those first whose peer does not do the same."""
        waiting = {
            rank: place.under_way[0]
            for rank, place in self.known.items()
            if place.under_way and place.under_way[0].sequence is None
        }
        sentences = []
        for rank, call in sorted(waiting.items(), key=lambda item: item[1].peer in waiting):
            sentence = f"{self._name([rank])} waits in {_describe(call, self.known[rank].line)}"
            peer = self.known.get(call.peer) if call.peer is not None else None
            if peer is not None:
                sentence += f"; {self._name([peer.rank])} was {self._place(peer.rank)}"
            sentences.append(sentence)
        return sentences

    def _nobody_missing(self) -> list[str]:
        """All have come, and still it is not over."""
        return [
            f"{self._name(wait.members)} all reached {self._what(wait)}, which does not end: "
            "look at the network between them, or for a rank that is very slow"
            for wait in self.waits
            if not wait.missing and not wait.unclear and not wait.silent(self.places) and len(_kinds(wait)) == 1
        ]

    def _name(self, ranks: Sequence[int]) -> str:
        """ranks 0-2, 5 (h0, h1)"""
        hosts = list(dict.fromkeys(self.hosts[rank] for rank in ranks))
        named = ", ".join(hosts[:_HOSTS]) + (f" and {len(hosts) - _HOSTS} more hosts" if len(hosts) > _HOSTS else "")
        return f"{_verb(ranks, 'rank', 'ranks')} {_ranges(ranks)} ({named})"

    def _what(self, wait: _Wait) -> str:
        return self._call(next(iter(wait.waiting)), wait)

    def _call(self, rank: int, wait: _Wait) -> str:
        return _describe(wait.waiting[rank], self.known[rank].line)

    def _place(self, rank: int) -> str:
        return last_seen(self.known[rank])


def last_seen(place: Whereabouts) -> str:
    """Where a rank was, after "it was"."""
    if place.at_end:
        return "at the end of its script"
    text = f"last in {place.line}" if place.line else "last seen in no line of Python"
    if place.under_way:
        text += f", with {_describe(place.under_way[0])} under way"
    return text


def _kinds(wait: _Wait) -> list[list[int]]:
    """The ranks that wait in one collective, divided where they called different things."""
    kinds = defaultdict(list)
    for rank, call in sorted(wait.waiting.items()):
        size = (call.bytes, call.dtype) if call.name in _ONE_SIZE else None
        kinds[call.name, size].append(rank)
    return list(kinds.values())


def _same_group(call: Call, other: Call) -> bool:
    return call.sequence is not None and (call.group, call.ranks) == (other.group, other.ranks)


def _describe(call: Call, line: str = "") -> str:
    """all_reduce #812 (16 MB, train.py:88)"""
    text = call.name
    if call.sequence is not None:
        text += f" #{call.sequence}"
    else:
        way = "to" if call.name == "send" else "from"
        text += f" {way} rank {call.peer}" if call.peer is not None else f" {way} any rank"
    if call.group:
        text += f" of group {call.group!r}"
    details = [detail for detail in (_size(call.bytes), line) if detail]
    return f"{text} ({', '.join(details)})" if details else text


def _ranges(ranks: Sequence[int]) -> str:
    """0-2, 5"""
    runs = format_list(ranks).split(",")
    more = len(runs) - _RUNS
    return ", ".join(runs[:_RUNS]) + (f" and {more} more" if more > 0 else "")


def _size(count: int | None) -> str:
    """16 MB"""
    if not count:
        return ""
    power = min((count.bit_length() - 1) // 10, 3)
    return f"{count / (1 << 10 * power):.3g} {('B', 'KB', 'MB', 'GB')[power]}"


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(_few(texts))


def _few(texts: Sequence[str]) -> list[str]:
    more = len(texts) - _LINES
    return [*texts[:_LINES], *([f"and {more} more of that kind"] if more > 0 else [])]
