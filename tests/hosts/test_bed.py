"""The bed itself: a process that a job leaves on one of its hosts fails the test."""

import pytest
from bed import Bed

pytestmark = pytest.mark.job


def test_a_process_that_a_job_leaves_fails_the_test_and_is_killed(bed: Bed) -> None:
    leave = "setsid sleep 300 </dev/null >/dev/null 2>&1 &"
    with pytest.raises(AssertionError, match=r"left processes behind.*h1.*sleep 300"):
        bed.run("h0", ["ssh", "h1", leave], timeout=120)
    assert bed.processes("h1") == {}
