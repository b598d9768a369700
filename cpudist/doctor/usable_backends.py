"""Check the backends and the mpirun that a job would use, and whether this host's name resolves."""

import ipaddress
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from cpudist import backends, launchers
from cpudist.backends.ccl.compilation import MODULE, find_built
from cpudist.compiler import find_compiler
from cpudist.doctor.libraries import load
from cpudist.errors import UserError, cause_and_remedy
from cpudist.findings import Finding
from cpudist.topology.identity import resolved
from cpudist.topology.kernel_files import Files


def check(files: Files, env: Mapping[str, str]) -> Iterator[Finding]:
    """Check the name of this host, all backends, the mpirun that would start ranks, and this process's launcher."""
    yield resolve(socket.gethostname())
    yield _ccl()
    for name, plugin in backends.plugins().items():
        for level, message, remedy in plugin.devices.findings(env):
            yield Finding(level, name, message, remedy)
    yield from _mpirun(env)
    if (launcher := launchers.detect(env)).name != "single":
        yield Finding("ok", "launcher", f"{launcher.name} started this process")


def resolve(name: str) -> Finding:
    """Resolve the name of this host; MPI and gloo look up its address when they start."""
    found = sorted(resolved(name))
    if not found:
        message = f"this host's name {name!r} has no address, so gloo and MPI cannot start"
        return Finding("error", "host name", message, f"add a line with its address to /etc/hosts: ADDRESS {name}")
    if all(ipaddress.ip_address(address).is_loopback for address in found):
        message = f"this host's name {name!r} has only loopback addresses ({', '.join(found)}): enough for one host"
        remedy = f"for jobs on several hosts, give {name} the address that the others use in /etc/hosts"
        return Finding("warning", "host name", message, remedy)
    return Finding("ok", "host name", f"{name} resolves to {', '.join(found)}")


def why_not_ccl() -> str:
    """Return why the ccl backend cannot be used, and the remedy; empty if it is compiled or can be."""
    try:
        if find_built() is None and find_compiler() is None:
            return "it is not compiled, and there is no C++ compiler; install g++ and run cpudist build"
    except UserError as error:
        return str(error)
    return ""


def _ccl() -> Finding:
    slow = "auto is gloo, several times slower than ccl"
    if reason := why_not_ccl():
        what, remedy = cause_and_remedy(reason)
        return Finding("warning", "backend", f"{slow}: {what}", remedy)
    built = find_built()
    if built is None:
        return Finding("ok", "backend", "auto is ccl; cpudist build, or the first job, compiles it in a minute or two")
    if reason := load().ccl_error:
        remedy = f"rm -r {built.parent} and run cpudist build"
        return Finding("warning", "backend", f"{slow}, whose compiled module does not load: {reason}", remedy)
    carrier = "oneCCL" if built.name == MODULE else "MPI, as oneCCL is not installed"
    return Finding("ok", "backend", f"auto is ccl, between hosts over {carrier}; compiled: {built}")


def _mpirun(env: Mapping[str, str]) -> Iterator[Finding]:
    own = Path(sys.prefix) / "bin" / "mpirun"
    found = shutil.which("mpirun", path=env.get("PATH", os.defpath))
    activate = f"activate the environment, or put {own.parent} first on PATH"
    if found is None:
        remedy = activate if own.exists() else "pip install 'cpudist[ccl]', which brings MPICH's"
        yield Finding("warning", "mpirun", "there is no mpirun on PATH; torchrun starts jobs on one host", remedy)
    elif own.exists() and Path(found).resolve() != own.resolve():
        message = f"the mpirun on PATH is {found}, not this environment's own, {own}: they may be different MPIs"
        yield Finding("warning", "mpirun", message, activate)
    else:
        yield Finding("ok", "mpirun", found)
