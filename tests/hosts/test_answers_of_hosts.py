"""Whatever bytes come back over ssh: a table and the hosts' facts, or an error of one line with its remedy."""

import json
from dataclasses import asdict
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from cpudist.cli import top
from cpudist.errors import Finding
from cpudist.hosts import check
from cpudist.hosts.remote import Answer, understood
from cpudist.launchers.mpi_launcher import Host
from cpudist.observability.rank_answers import RankStacks
from cpudist.observability.rank_table import rows_of
from cpudist.observability.stack_server import StackAddress

HOST = Host("h1", 4, "hosts, line 2")
FIGURES = {"host": "h1", "at": 1.0, "steps": 3, "waited": 0.5, "loading": 0.1, "processor": 1.0, "memory": 1 << 30}
FIGURES |= {"threads": 2, "bytes": 7, "restarts": 1, "losses": [2.0, 1.0], "checkpoint": "step-1"}
RANK = asdict(RankStacks(StackAddress("h0:29500", 0, 2, 3), 0, "rank 0 (process 1): here\n", FIGURES))
RANKS = dict.fromkeys(("socket", "numa", "l3", "default"), 2)
FACTS = {"identity": "a", "python": "3.11.7", "cpudist": "0.1.0", "torch": "2.13.0", "seconds": 9.5}
FACTS |= {"memory": 8 << 30, "folder": True, "ranks": RANKS, "script": None, "shared": True}
FACTS |= {"address": "10.0.0.2", "port": 4711, "findings": [asdict(Finding("warning", "quota", "a quota", "raise it"))]}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def outputs(*answers: Any) -> st.SearchStrategy[str]:
    """Any bytes, and these answers: cut short, after a greeting, or with other values."""
    texts = [json.dumps(answer).encode() for answer in answers]
    cut = st.builds(lambda text, end: text[:end], st.sampled_from(texts), st.integers(0, max(map(len, texts))))
    pieces = st.binary() | st.sampled_from(texts) | cut | JSON.map(json.dumps).map(str.encode)
    return st.lists(pieces, max_size=3).map(lambda lines: b"\n".join(lines).decode(errors="replace"))


def changed(answer: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An answer of another version: other, more and fewer fields."""
    one = st.builds(lambda name, value: {**answer, name: value}, st.sampled_from([*answer, "new"]), JSON)
    return one | st.sampled_from(list(answer)).map(lambda name: {k: v for k, v in answer.items() if k != name})


def table_or_error(output: str) -> list[str] | None:
    found = understood(HOST, Answer(output), RankStacks.list_of)
    if isinstance(found, Finding):
        assert found.line.startswith("hosts, line 2: h1 gives an answer that is not understood: ")
        assert "\n" not in found.line
        return None
    ranks = {one.address.rank: one for one in sorted(found)}
    rows = rows_of(ranks, dict.fromkeys(ranks, RankStacks(StackAddress("j", 0, 2, 3), 0, "x", FIGURES)))
    return top._text("job", ranks, rows, 9) if ranks else []


@given(outputs([RANK], [RANK, RANK]) | changed(RANK).map(lambda rank: json.dumps([rank])))
@example("")
@example("Welcome to h1!")
def test_any_bytes_are_a_table_or_an_error(output: str) -> None:
    table_or_error(output)


@given(changed(FIGURES))
def test_figures_of_another_version_leave_the_others(figures: dict[str, Any]) -> None:
    assert table_or_error(json.dumps([{**RANK, "figures": figures}]))


@given(outputs(FACTS) | (changed(FACTS) | changed(RANKS).map(lambda ranks: {**FACTS, "ranks": ranks})).map(json.dumps))
def test_any_bytes_are_facts_or_an_error(output: str) -> None:
    found = understood(HOST, Answer(output), lambda fields: check._facts(fields, 9.0, 10.0))
    if isinstance(found, Finding):
        assert "\n" not in found.line
        return
    check._judge(HOST, found, check._facts(FACTS, 9.0, 10.0), "train.py")
    assert found.ranks["numa"] > 0


def test_what_they_say_is_understood_after_a_greeting() -> None:
    lines = table_or_error(f"Welcome!\n\n{json.dumps([RANK])}\n")
    assert lines is not None
    assert lines[0].startswith("job of job: 1 of 2 ranks")
    assert (
        understood(HOST, Answer(f"Hi\n{json.dumps(FACTS)}"), lambda fields: check._facts(fields, 9.0, 10.0)).skew == 0
    )
