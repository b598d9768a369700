"""The bed itself: hosts are separate, fail as machines do, and end with the process that made them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from bed import Bed

from cpudist.waiting import poll

pytestmark = pytest.mark.job

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 22), timeout=2).recv(4)"


def answers(bed: Bed, from_host: str, to_host: str) -> bool:
    """Whether one host gets an answer from the other's sshd within two seconds."""
    return bed.run(from_host, [sys.executable, "-c", CONNECT, to_host], timeout=120).returncode == 0


def test_hosts_are_apart(bed: Bed) -> None:
    """Over ssh by name; with host names, shared memory, interfaces and processes of their own."""
    see = "hostname; touch /dev/shm/mine; ls /dev/shm; ls /sys/class/net; ls -d /proc/[0-9]* | wc -l"
    for here, there in (("h0", "h1"), ("h1", "h0")):
        name, memory, *interfaces, processes = bed.run(here, ["ssh", there, see], timeout=120).stdout.split()
        assert (name, memory, interfaces) == (there, "mine", ["eth0", "lo"])
        assert int(processes) < 12
        assert bed.run(here, ["ls", "/dev/shm"], timeout=60).stdout == ("" if here == "h0" else "mine\n")


def test_two_beds_at_once_do_not_see_each_other(bed: Bed, own_bed: Bed) -> None:
    assert poll(lambda: answers(own_bed, "h0", "h1"), 60)
    own_bed.kill("h1")
    assert not answers(own_bed, "h0", "h1")
    assert poll(lambda: answers(bed, "h0", "h1"), 60)


def test_a_disconnected_host_comes_back(bed: Bed) -> None:
    bed.disconnect("h1")
    assert not answers(bed, "h0", "h1")
    bed.connect("h1")
    assert poll(lambda: answers(bed, "h0", "h1"), 60)


def test_a_frozen_host_takes_connections_and_says_nothing(bed: Bed) -> None:
    bed.freeze("h1")
    assert not answers(bed, "h0", "h1")
    bed.thaw("h1")
    assert poll(lambda: answers(bed, "h0", "h1"), 60)


def test_a_limit_holds(bed: Bed) -> None:
    """1 MiB at 8 Mbit/s takes a second, less what may go in a burst; never less, so this cannot fail by chance."""
    bed.limit("8mbit")
    start = time.monotonic()
    done = bed.run("h0", ["sh", "-c", "ssh h1 head -c 1048576 /dev/zero >/dev/null"], timeout=120)
    assert time.monotonic() - start > 0.7
    assert done.returncode == 0
    bed.limit(None)


def test_a_process_that_a_job_leaves_fails_the_test_and_is_killed(bed: Bed) -> None:
    leave = "setsid sleep 300 </dev/null >/dev/null 2>&1 &"
    with pytest.raises(AssertionError, match=r"left processes behind.*h1.*sleep 300"):
        bed.run("h0", ["ssh", "h1", leave], timeout=120)
    assert bed.processes("h1") == {}


# Makes a bed with a job and a frozen host, says which processes belong to it, and waits to be killed.
HOLDER = """
import sys, threading, time
from contextlib import suppress
from pathlib import Path
import psutil
from bed import Bed

with Bed(Path(sys.argv[1])) as bed:
    threading.Thread(target=bed.run, args=("h1", ["sleep", "300"], 300), daemon=True).start()
    while not bed.processes("h1"):
        time.sleep(0.05)
    bed.freeze("h1")
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    sys.stdin.read()
"""


def mounts() -> Counter[str]:
    """Return how often each folder that a bed mounts on is mounted here; others may mount elsewhere meanwhile."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return Counter(
        point for point in points if point in ("/proc", "/dev/shm", "/run", "/sys", "/etc/hosts", "/etc/ssh")
    )


def test_nothing_outlives_whoever_made_the_bed(tmp_path: Path) -> None:
    before = mounts()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "helpers")},
    )
    members: list[psutil.Process] = []
    alive: list[psutil.Process] = []
    try:
        for pid in holder.stdout.readline().split():
            with suppress(psutil.NoSuchProcess):  # a helper of the start that has done its work
                members.append(psutil.Process(int(pid)))
        assert len(members) > 8, "a switch, two hosts with unshare, a first process and sshd, and a job"
        holder.kill()
        holder.wait(120)
        _, alive = psutil.wait_procs(members, timeout=120)
        assert not alive
    finally:
        holder.kill()
        holder.communicate()
        for process in alive:
            process.kill()
    assert mounts() == before
    assert not {"br0", "to-h0", "to-h1"} & set(os.listdir("/sys/class/net"))
