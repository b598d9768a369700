"""Readers of YAML 1.1 and 1.2 read every text as the user has given it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cpudist.render.document import LiteralBlock, Noted, write

TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=30)
WORDS = st.sampled_from(
    ["on", "No", "y", "~", "1_0", "1:30", "0o17", "0x1", ".5", "1e3", "null", "2026-11-22", "=", "<<"]
)


@settings(max_examples=50)
@given(st.lists(TEXTS | WORDS, min_size=1), TEXTS | WORDS)
def test_texts_come_out_as_they_went_in(arguments: list[str], value: str) -> None:
    document = {"args": arguments, "env": [{"name": "A", "value": Noted(value, "why # not: really")}], "count": 2}
    plain = {"args": arguments, "env": [{"name": "A", "value": value}], "count": 2}
    text = write([document, {"kind": "second"}], "two documents\nkubectl apply")
    assert list(yaml.safe_load_all(text)) == [plain, {"kind": "second"}]
    assert list(YAML(typ="safe").load_all(text)) == [plain, {"kind": "second"}]


def test_a_comment_stands_above_its_value_and_a_script_as_it_is() -> None:
    text = write(
        [{"spec": {"a": Noted({"b": Noted(1, "inner " * 30)}, "outer"), "run": LiteralBlock("x=1\nexec y\n")}}], "h"
    )
    inner = " ".join(["inner"] * 17)
    assert text.splitlines()[:5] == ["# h", "spec:", "  # outer", "  a:", f"    # {inner}"]
    assert text.endswith("  run: |\n    x=1\n    exec y\n")


@pytest.mark.parametrize("text", ["plain", "/data", "registry/team.image"])
def test_what_needs_no_quotes_has_none(text: str) -> None:
    assert write([{"a": text}], "h") == f"# h\na: {text}\n"
