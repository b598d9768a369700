"""Name the ranks that keep the others waiting, from the statuses that all ranks publish."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cpudist.backends.interface import Call
from cpudist.console import names_of
from cpudist.supervision.rank_status import RankStatus
from cpudist.supervision.rank_texts import LINES, describe, last_seen
from cpudist.topology.kernel_files import format_list

Statuses = Mapping[int, RankStatus | None]

_DEADLOCK_SECONDS = 3.0  # A shorter wait may be the destruction of a group, which looks like a deadlock.
_RUNS = 8  # A sentence lists at most so many ranges of ranks.

_ONE_SIZE = {  # Collectives that need tensors of the same size on all ranks of the group.
    *("all_reduce", "broadcast", "reduce", "barrier", "all_gather", "all_gather_into_tensor", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor"),
}


@dataclass(frozen=True)
class _Wait:
    """The oldest incomplete collective of a group, and the ranks that wait in it."""

    members: Sequence[int]
    waiting: Mapping[int, Call]
    missing: Sequence[int]  # ranks that answer and have not called the collective
    unclear: Sequence[int]  # ranks that answer, but cannot report their calls


class Explanation:
    """Finds the ranks that keep the others waiting; the status of a rank that does not answer is None."""

    def __init__(self, statuses: Statuses, hosts: Sequence[str]) -> None:
        self.statuses = statuses
        self.hosts = hosts
        self.known = {rank: place for rank, place in statuses.items() if place is not None}
        self.silent = [rank for rank in statuses if rank not in self.known]
        self.waits = self._waits()

    def sentences(self) -> list[str]:
        """Return sentences, the most likely cause first; none if no rank waits."""
        kinds = [
            self._not_answering(),
            self._mismatches(),
            self._missing(),
            self._unclear(),
            self._messages(),
            self._nobody_missing(),
        ]
        return [sentence for kind in kinds for sentence in _few(kind)]

    def ended(self) -> list[str]:
        """Return sentences about the ranks whose script has ended; other ranks may still wait for them."""
        ended = [rank for rank, place in self.known.items() if place.at_end]
        return _few([f"{self._name([rank])} makes no calls any more; it was {self._place(rank)}" for rank in ended])

    def blamed(self) -> list[int]:
        """Return the ranks that most likely cause the wait; none if all ranks answer and none is missing."""
        missing = [rank for wait in self.waits for rank in wait.missing]
        idle = [rank for rank in missing if not self.known[rank].under_way]
        return sorted({*(self.silent or idle or missing)})

    def deadlocked(self) -> bool:
        """Return whether ranks wait for a rank whose script has ended."""
        for wait in self.waits:
            longest = max(wait.waiting.values(), key=lambda call: call.seconds)
            if longest.seconds > _DEADLOCK_SECONDS and any(self._ended_before(longest, rank) for rank in wait.missing):
                return True
        return False

    def _ended_before(self, call: Call, rank: int) -> bool:
        """Return whether the rank's script has ended without making `call`; False if it has destroyed the group."""
        place = self.known[rank]
        return place.at_end and (call.group in place.unused or self._reached(rank, call) > 0)

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
        # A group with empty `ranks` is being destroyed; the ranks that report its calls count as members.
        members = sorted(self.statuses if ranks is None else set(ranks or calls) & set(self.statuses))
        behind = [rank for rank in members if rank in self.known and self._reached(rank, example) < sequence]
        missing = [rank for rank in behind if self.known[rank].calls_known]
        return _Wait(members, waiting, missing, [rank for rank in behind if rank not in missing])

    def _reached(self, rank: int, example: Call) -> int:
        """Return the number of the newest collective that the rank has called in the group of `example`."""
        calls = (*self.known[rank].finished, *self.known[rank].under_way)
        same = [call for call in calls if (call.group, call.ranks) == (example.group, example.ranks)]
        return max((call.sequence or 0 for call in same), default=0)

    def _not_answering(self) -> list[str]:
        if not (silent := self.silent):
            return []
        sentence = f"{self._name(silent)} {_verb(silent, 'does', 'do')} not answer: stopped, or the host is gone"
        wait = next((wait for wait in self.waits if self._waits_for_silent(wait) and len(_kinds(wait)) == 1), None)
        if wait is not None:
            others = list(wait.waiting)
            sentence += f"; {self._name(others)} {_verb(others, 'waits', 'wait')} in {self._what(wait)}"
        return [sentence]

    def _waits_for_silent(self, wait: _Wait) -> bool:
        return not set(self.silent).isdisjoint(wait.members)

    def _mismatches(self) -> list[str]:
        sentences = []
        for wait in self.waits:
            kinds = _kinds(wait)
            if len(kinds) > 1:
                calls = _few([f"{self._name(ranks)} called {self._call(ranks[0], wait)}" for ranks in kinds])
                sentences.append(f"{', '.join(calls)}: all ranks must make the same calls in the same order")
        return sentences

    def _missing(self) -> list[str]:
        """Name the missing ranks; ranks whose script has ended come first, and ranks that wait themselves last."""
        said = [
            ((waits, not self.known[ranks[0]].at_end), f"{self._name(ranks)} never reached {self._what(wait)}; {place}")
            for wait in self.waits
            for (waits, place), ranks in self._by_place(wait.missing).items()
        ]
        return [sentence for _, sentence in sorted(said, key=lambda one: one[0])]

    def _unclear(self) -> list[str]:
        """Name the ranks that cannot report their calls, because they are blocked inside a communication library."""
        return [
            f"{self._name(ranks)} may or may not have reached {self._what(wait)}: "
            f"{_verb(ranks, 'it is', 'they are')} inside the communication library; {place}"
            for wait in self.waits
            for (_, place), ranks in self._by_place(wait.unclear).items()
        ]

    def _by_place(self, ranks: Sequence[int]) -> dict[tuple[bool, str], list[int]]:
        """Group ranks by whether they wait themselves, and by a sentence that says where they were."""
        found = defaultdict(list)
        for rank in ranks:
            found[bool(self.known[rank].under_way), self._place(rank)].append(rank)
        return {
            (waits, f"{_verb(ranks, 'it was', 'they were')} {place}"): ranks for (waits, place), ranks in found.items()
        }

    def _messages(self) -> list[str]:
        """Name the ranks that wait to send or to receive; ranks whose peer does not wait come first."""
        waiting = {
            rank: place.under_way[0]
            for rank, place in self.known.items()
            if place.under_way and place.under_way[0].sequence is None
        }
        sentences = []
        for rank, call in sorted(waiting.items(), key=lambda item: item[1].peer in waiting):
            sentence = f"{self._name([rank])} waits in {describe(call, self.known[rank].line)}"
            peer = self.known.get(call.peer) if call.peer is not None else None
            if peer is not None:
                sentence += f"; {self._name([peer.rank])} was {self._place(peer.rank)}"
            sentences.append(sentence)
        return sentences

    def _nobody_missing(self) -> list[str]:
        """Name the collectives that all ranks have called but not completed."""
        return [
            f"{self._name(wait.members)} all reached {self._what(wait)}, which does not end: "
            "check the network between them, and whether a rank is very slow"
            for wait in self.waits
            if len(wait.members) > 1  # not a rank that destroys a group
            and not wait.missing
            and not wait.unclear
            and not self._waits_for_silent(wait)
            and len(_kinds(wait)) == 1
        ]

    def _name(self, ranks: Sequence[int]) -> str:
        """Return ranks and their hosts as text: ranks 0-2, 5 (h0, h1)."""
        hosts = names_of(self.hosts[rank] for rank in ranks)
        return f"{_verb(ranks, 'rank', 'ranks')} {_ranges(ranks)} ({hosts})"

    def _what(self, wait: _Wait) -> str:
        return self._call(next(iter(wait.waiting)), wait)

    def _call(self, rank: int, wait: _Wait) -> str:
        return describe(wait.waiting[rank], self.known[rank].line)

    def _place(self, rank: int) -> str:
        return last_seen(self.known[rank])


def _kinds(wait: _Wait) -> list[list[int]]:
    """Group the waiting ranks by their calls, which should all be the same."""
    kinds = defaultdict(list)
    for rank, call in sorted(wait.waiting.items()):
        size = (call.bytes, call.dtype) if call.name in _ONE_SIZE else None
        kinds[call.name, size].append(rank)
    return list(kinds.values())


def _ranges(ranks: Sequence[int]) -> str:
    """Return ranks as text: 0-2, 5."""
    runs = format_list(ranks).split(",")
    more = len(runs) - _RUNS
    return ", ".join(runs[:_RUNS]) + (f" and {more} more" if more > 0 else "")


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _few(texts: Sequence[str]) -> list[str]:
    more = len(texts) - LINES
    return [*texts[:LINES], *([f"and {more} more like these"] if more > 0 else [])]
