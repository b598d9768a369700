"""Arguments that launchers do not take reach the ranks unchanged."""

import os
import sys

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cpudist import long_arguments
from cpudist.errors import UserError


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_characters="\0")), max_size=5), st.sampled_from([0, 252, 300]))
@example(["\udcff", "", "a b\n"], 300)
def test_they_arrive_once(monkeypatch: pytest.MonkeyPatch, words: list[str], more: int) -> None:
    words = words + ["--x"] * more
    monkeypatch.setattr(sys, "argv", ["cpudist-train"])
    monkeypatch.setattr(sys, "orig_argv", ["python", "cpudist-train"])
    found = long_arguments.variables(words)
    assert bool(found) == (len(words) > 256)
    os.environ.update(found)
    for _ in range(2):
        long_arguments.restore()
        assert (sys.argv, sys.orig_argv) == (["cpudist-train", *words * bool(found)], ["python", *sys.argv])


def test_too_long_ones_are_an_error() -> None:
    with pytest.raises(UserError, match="100000 arguments are too long"):
        long_arguments.variables([os.urandom(2).hex() for _ in range(100_000)])
