"""The bed itself: its hosts are separate, and a process that a job leaves on one of them fails the test."""

from __future__ import annotations

import pytest
from bed import Bed

pytestmark = pytest.mark.job


def test_hosts_are_apart(bed: Bed) -> None:
    """Over ssh by name; with host names, shared memory, interfaces and processes of their own."""
    see = "hostname; touch /dev/shm/mine; ls /dev/shm; ls /sys/class/net; ls -d /proc/[0-9]* | wc -l"
    for here, there in (("h0", "h1"), ("h1", "h0")):
        name, memory, *interfaces, processes = bed.run(here, ["ssh", there, see], timeout=120).stdout.split()
        assert (name, memory, interfaces) == (there, "mine", ["eth0", "lo"])
        assert int(processes) < 12
        assert bed.run(here, ["ls", "/dev/shm"], timeout=60).stdout == ("" if here == "h0" else "mine\n")


def test_a_process_that_a_job_leaves_fails_the_test_and_is_killed(bed: Bed) -> None:
    leave = "setsid sleep 300 </dev/null >/dev/null 2>&1 &"
    with pytest.raises(AssertionError, match=r"left processes behind.*h1.*sleep 300"):
        bed.run("h0", ["ssh", "h1", leave], timeout=120)
    assert bed.processes("h1") == {}
