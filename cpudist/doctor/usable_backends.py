"""The backend, transport and mpirun that a job would use, and why; whether they find this host's address."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist import backends
from cpudist.backends.ccl.compilation import find_built
from cpudist.compiler import find_compiler
from cpudist.doctor.libraries import load
from cpudist.errors import Finding, UserError
from cpudist.topology.identity import resolved
from cpudist.topology.kernel_files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the name of this host, all backends, and the mpirun that would start ranks."""
    yield resolve(socket.gethostname())
    yield _ccl(env)
    for name, plugin in backends.plugins().items():
        for level, message, remedy in plugin.devices.findings(env):
            yield Finding(level, name, message, remedy)
    yield from _mpirun(env)


def resolve(name: str) -> Finding:
    """Resolve the name of this host; MPI and gloo look its address up when they start."""
    found = sorted(resolved(name))
    if not found:
        return Finding(
            "error",
            "host name",
            f"this host's name {name!r} has no address, so gloo and MPI cannot start",
            f"add a line with its address to /etc/hosts: ADDRESS {name}",
        )
    if all(ipaddress.ip_address(address).is_loopback for address in found):
        return Finding(
            "warning",
            "host name",
            f"this host's name {name!r} has only loopback addresses ({', '.join(found)}): enough for a job on one host",
            f"for jobs on several hosts, give {name} the address that the others use in /etc/hosts",
        )
    return Finding("ok", "host name", f"{name} resolves to {', '.join(found)}")


def _ccl(env: Mapping[str, str]) -> Finding:
    try:
        built = find_built()
    except UserError as error:
        reason, _, remedy = str(error).partition("; ")
        return Finding("warning", "backend", f"auto is gloo, several times slower than ccl: {reason}", remedy)
    what = f"auto is ccl: {_transport(env)}"
    if built and (reason := load(env).ccl_error):
        return Finding(
            "warning",
            "backend",
            f"auto is gloo, several times slower than ccl, whose compiled module does not load: {reason}",
            f"rm -r {built.parent} and run cpudist build",
        )
    if built:
        return Finding("ok", "backend", f"{what}; compiled: {built}")
    if find_compiler() is None:
        return Finding(
            "warning",
            "backend",
            "auto is gloo, several times slower than ccl, which is not compiled, and there is no C++ compiler",
            "install g++, or run `cpudist build` where there is one and set CPUDIST_CACHE",
        )
    return Finding("ok", "backend", f"{what}; cpudist build, or the first job, compiles it in a minute or two")


def _transport(env: Mapping[str, str]) -> str:
    """Return the transport of messages, and why."""
    inside = "through shared memory inside a machine"
    if env.get("CPUDIST_TRANSPORT") == "oneccl":
        inside = "by oneCCL inside a machine, because CPUDIST_TRANSPORT=oneccl is set"
    between = "over MPI where the launcher makes an MPI world (Intel MPI, MPICH, srun --mpi=pmi2), otherwise libfabric"
    if chosen := env.get("CCL_ATL_TRANSPORT"):
        between = f"over {chosen}, because CCL_ATL_TRANSPORT is set"
    return f"messages go {inside}; between machines {between}"


def _mpirun(env: Mapping[str, str]) -> Iterator[Finding]:
    own = Path(sys.prefix) / "bin" / "mpirun"
    found = shutil.which("mpirun", path=env.get("PATH", os.defpath))
    if found is None:
        yield Finding(
            "warning",
            "mpirun",
            "there is no mpirun on PATH; torchrun starts jobs on one host",
            f"put {own.parent} first on PATH" if own.exists() else "pip install 'cpudist[ccl]', which brings MPICH's",
        )
    elif own.exists() and Path(found).resolve() != own.resolve():
        yield Finding(
            "warning",
            "mpirun",
            f"the mpirun on PATH is {found}, not this environment's own, {own}: they may be different MPIs",
            f"activate the environment, or put {own.parent} first on PATH",
        )
    else:
        yield Finding("ok", "mpirun", found)
