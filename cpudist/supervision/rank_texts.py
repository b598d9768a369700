"""Describe in words what a rank does or did last, and which ranks are lost or late at the end."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cpudist.backends.interface import Call
from cpudist.console import number_of, size
from cpudist.processes.lost_ranks import LostRank
from cpudist.supervision.rank_status import RankStatus

LINES = 3  # Most sentences of each kind, so that a report about 1 000 ranks stays short.


def summary(place: RankStatus) -> str:
    """Return a rank's activity as text, such as: in all_reduce #812 (16 MB, train.py:88) for 7.1 s."""
    if place.at_end:
        return last_seen(place)
    if place.under_way:
        call = place.under_way[0]
        return f"in {describe(call, place.line)} for {call.seconds:.1f} s"
    last = f", after {describe(place.finished[0])}" if place.finished else ""
    return f"in {place.line or 'no line of Python'}{last}"


def unfinished(statuses: Mapping[int, RankStatus], seconds: float) -> list[str]:
    """Return sentences about ranks whose script has not ended after `seconds` of waiting."""
    late = [place for place in statuses.values() if not place.at_end]
    return [
        f"after {seconds:g} s at the end still waiting for rank {place.rank} ({place.host}), {last_seen(place)}"
        for place in late[:LINES]
    ]


def explain_lost(lost: Sequence[LostRank], statuses: Mapping[int, RankStatus], hosts: Sequence[str]) -> list[str]:
    """Return sentences about the first lost ranks (one rank for each unreachable host), and the number of others."""
    sentences, named = [], dict[object, LostRank]()
    for loss in lost:
        assert loss.rank is not None
        named.setdefault(hosts[loss.rank] if loss.how == "unreachable" else loss.rank, loss)
    for loss in [*named.values()][:LINES]:
        assert loss.rank is not None
        place = statuses.get(loss.rank)
        doing = "" if place is None else last_seen(place)
        sentences.append(str(replace(loss, host=hosts[loss.rank], last_seen=doing)))
    if len(named) > LINES:
        sentences.append(f"{number_of(len(named) - LINES, 'more rank')} lost")
    return sentences


def last_seen(place: RankStatus) -> str:
    """Return where a rank was, as words that follow "it was"."""
    if place.at_end:
        return "at the end of its script" + (f", last in {place.line}" if place.line else "")
    text = f"last in {place.line}" if place.line else "last seen in no line of Python"
    if place.under_way:
        text += f", with {describe(place.under_way[0])} under way"
    return text


def describe(call: Call, line: str = "") -> str:
    """Return a call as text: all_reduce #812 (16 MB, train.py:88)."""
    text = call.name
    if call.sequence is not None:
        text += f" #{call.sequence}"
    else:
        way = "to" if call.name == "send" else "from"
        text += f" {way} rank {call.peer}" if call.peer is not None else f" {way} any rank"
    if call.group:
        text += f" of group {call.group!r}"
    details = [detail for detail in (size(call.bytes) if call.bytes else "", line) if detail]
    return f"{text} ({', '.join(details)})" if details else text
