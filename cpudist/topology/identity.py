"""Identify this machine, and find the addresses at which others reach it."""

import os
import socket

from cpudist.console import option
from cpudist.errors import UserError

# Libraries read the network interface from these variables when they open their first connection.
INTERFACE_VARIABLES = (
    "GLOO_SOCKET_IFNAME",  # gloo
    # libfabric, which Intel MPI, MPICH and oneCCL use, has one variable for each provider.
    *("FI_TCP_IFACE", "FI_SOCKETS_IFACE", "FI_UDP_IFACE", "FI_VERBS_IFACE"),
    "OMPI_MCA_btl_tcp_if_include",  # Open MPI
    "UCX_NET_DEVICES",  # UCX, the transport of Debian's MPICH and Open MPI
)


def node_identity() -> str:
    """Return a text that is the same in two processes exactly if they can share memory.

    The host name is not unique, and containers on one machine may be unable to share memory. So the text also names the
    running kernel, the IPC namespace and the device of /dev/shm.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    shared_memory = os.stat("/dev/shm").st_dev if os.path.isdir("/dev/shm") else 0
    return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/ipc').st_ino}/{shared_memory}"


def addresses(interface: str | None = None) -> list[str]:
    """Return the addresses at which others may reach this machine, IPv4 first, or 127.0.0.1 if there is none.

    With `interface`, return only its own; raise UserError if it is missing or down, or has no address.
    """
    import psutil

    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = [
        (name, entry.address)
        for family in (socket.AF_INET, socket.AF_INET6)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if name in up and entry.family == family and not entry.address.startswith("fe80")
    ]
    if interface is None:
        return [address for _, address in found if not address.startswith(("127.", "::1"))] or ["127.0.0.1"]
    own = [address for name, address in found if name == interface]
    if not own:
        why = f"{socket.gethostname()} has no network interface {interface} that is up and has an address"
        raise UserError(f"{why}; give {option('interface')} one of {', '.join(sorted({name for name, _ in found}))}")
    return own


def resolved(name: str) -> set[str]:
    """Return the addresses of a host's name; empty if the name cannot be resolved."""
    try:
        return {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(name, None)}
    except OSError:
        return set()


def interface_of(address: str) -> str | None:
    """Return the network interface that has this address; None if no interface of this machine has it."""
    import psutil

    entries = psutil.net_if_addrs().items()
    return next((name for name, found in entries if any(entry.address == address for entry in found)), None)


def networks() -> dict[str, str]:
    """Return the first address of each interface at which others may reach this machine."""
    return {name: one for one in reversed(addresses()) if (name := interface_of(one)) not in (None, "lo")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
