"""The variables by which libraries choose a network interface, read when they open their first connection."""

from __future__ import annotations

_NAMES = (
    "GLOO_SOCKET_IFNAME",  # gloo
    "FI_TCP_IFACE",  # libfabric, which carries Intel MPI, MPICH and oneCCL: its provider tcp, and the older sockets
    "FI_SOCKETS_IFACE",
    "OMPI_MCA_btl_tcp_if_include",  # Open MPI
    "UCX_NET_DEVICES",  # UCX, which carries Debian's MPICH and Open MPI
)


def interface_variables(name: str) -> dict[str, str]:
    """What to set so that messages between hosts go over the interface `name`."""
    return dict.fromkeys(_NAMES, name)
