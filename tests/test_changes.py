"""Changes that are undone with a job."""

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
        for _ in range(2):  # wanted twice, and taken back once
            changes.ignored_warnings()
        warnings.filterwarnings("error", "the script's own")
        warnings.warn("not seen", stacklevel=1)
        changes.undo()
        assert [rule[0] for rule in warnings.filters] == ["error", *["ignore"] * there_before]
