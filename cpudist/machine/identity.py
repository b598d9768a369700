"""Which machine this is, and where others reach it."""

from __future__ import annotations

import os
import socket


def node_identity() -> str:
    """A text that processes have in common exactly when they can share memory.

    The host name alone does not tell: two machines may have the same, and containers on one machine cannot share
    memory. So the running kernel, the IPC namespace and the device of /dev/shm count too.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    shared_memory = os.stat("/dev/shm").st_dev if os.path.isdir("/dev/shm") else 0
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/ipc').st_ino}/{shared_memory}"


def addresses() -> list[str]:
    """The addresses at which others may reach this machine, IPv4 first; 127.0.0.1 where it has no others."""
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    entries = [entry for name, found in psutil.net_if_addrs().items() if name in up for entry in found]
    outward = [
        entry.address
        for family in (socket.AF_INET, socket.AF_INET6)
        for entry in entries
        if entry.family == family and not entry.address.startswith(("127.", "::1", "fe80"))
    ]
    return outward or ["127.0.0.1"]


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
