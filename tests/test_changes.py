"""Changes that are undone with a job."""

from __future__ import annotations

import warnings

import pytest

from cpudist.changes import Changes


@pytest.mark.parametrize("there_before", [False, True])
def test_filters_that_a_script_adds_meanwhile_stay(there_before: bool) -> None:
    with warnings.catch_warnings():
        warnings.resetwarnings()
        if there_before:
            warnings.simplefilter("ignore")
        changes = Changes()
        changes.ignored_warnings()
        warnings.filterwarnings("error", "the script's own")
        warnings.warn("not seen", stacklevel=1)
        changes.undo()
        assert [rule[0] for rule in warnings.filters] == ["error", *["ignore"] * there_before]


def test_one_filter_that_is_wanted_twice_is_taken_back_once() -> None:
    with warnings.catch_warnings():
        before = list(warnings.filters)
        changes = Changes()
        for _ in range(2):
            changes.ignored_warnings("any text", FutureWarning)
        assert warnings.filters[0][0] == "ignore"
        changes.undo()
        assert list(warnings.filters) == before
