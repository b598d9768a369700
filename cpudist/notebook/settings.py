"""Check the arguments of `notebook_launcher` before anything starts."""

import hashlib
import inspect
import json
import os
import string
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpudist import backends, launchers
from cpudist.console import say
from cpudist.errors import UserError
from cpudist.job.job_options import JobOptions
from cpudist.launchers import Placement
from cpudist.launchers.launcher import token_in

PORT = 29500  # torch's default; the cells of several nodes must use the same port
# Accelerate's parameters for torchelastic, and their defaults.
_ELASTIC = {"rdzv_backend": "static", "rdzv_endpoint": "", "rdzv_conf": None, "monitor_interval": 0.1}
_COMPARED = ("num_nodes", "num_processes", "mixed_precision", "max_restarts", "backend", "compress", "resume")
_ROLE = "default"  # torchelastic's default name of a role


@dataclass(frozen=True)
class Settings:
    """One launch on this node. Fields that are not explained here are arguments of `notebook_launcher`."""

    # Values that must be the same on all nodes: name -> (text for errors, digest). Empty on one node.
    compared: Mapping[str, tuple[str, str]]
    num_processes: int  # number of ranks on each node
    num_nodes: int
    node_rank: int
    master_addr: str
    master_port: int  # 0 for any free port
    options: JobOptions  # options of the ranks' job
    mixed_precision: str
    max_restarts: int
    # Prefix of each line of all ranks' output; None: show only rank 0's output, without a prefix.
    template: string.Template | None
    job: str  # name of the job, which all nodes' cells share (`rdzv_id`)
    token: str  # secret that clients of the store must have; empty where the user has set none

    def placement(self, local_rank: int) -> Placement:
        return Placement(
            rank=self.node_rank * self.num_processes + local_rank,
            size=self.num_nodes * self.num_processes,
            local_rank=local_rank,
            local_size=self.num_processes,
            node_rank=self.node_rank,
            node_count=self.num_nodes,
        )

    def prefix(self, local_rank: int) -> str | None:
        """Return the prefix of each line of a rank's output; None where only rank 0's output is shown."""
        if self.template is None:
            return None
        return self.template.substitute(role_name=_ROLE, local_rank=local_rank, rank=self.placement(local_rank).rank)


def checked(function: Callable[..., Any], args: Any, given: Mapping[str, Any]) -> Settings:
    """Check the arguments of `notebook_launcher`, `given` by name, and return them as `Settings`."""
    _check_here()
    if not callable(function):
        raise UserError(f"notebook_launcher takes a function, not {_shown(function)}; give its name without brackets")
    if not isinstance(args, (tuple, list)):
        raise UserError(f"args must be a tuple of the function's arguments, not {_shown(args)}; one alone is (x,)")
    processes, nodes = _count(given, "num_processes", 1), _count(given, "num_nodes", 1)
    node_rank = _count(given, "node_rank", 0)
    if node_rank >= nodes:
        raise UserError(f"node_rank={node_rank} is not below num_nodes={nodes}; count nodes from 0")
    address, port = _rendezvous_address(given, nodes)
    if unused := [name for name, default in _ELASTIC.items() if given[name] != default]:
        meet = f"nodes meet at {address}:{port}, within timeout" if nodes > 1 else "one node needs none"
        say(f"{', '.join(unused)}: torchelastic is not used; {meet}")
    backend = given["backend"]
    record = None if given["record"] is None else Path(given["record"])
    job_options = JobOptions.from_given(given, backend_options=given["options"], record=record)
    job_options = job_options.for_backend(backend, node_rank == 0)
    if backend != "auto" or job_options.backend_options:
        backends.make(backends.AUTO[0] if backend == "auto" else backend, job_options.backend_options)  # checks them
    if (precision := given["mixed_precision"]) not in ("no", "bf16", "fp16"):
        raise UserError(f"mixed_precision={_shown(precision)} cannot be used on CPUs; choose 'no', 'bf16' or 'fp16'")
    return Settings(
        compared=_compared(function, args, given) if nodes > 1 else {},
        num_processes=processes,
        num_nodes=nodes,
        node_rank=node_rank,
        master_addr=address,
        master_port=port,
        options=job_options,
        mixed_precision=precision,
        max_restarts=_count(given, "max_restarts", 0),
        template=_template(given["log_line_prefix_template"]),
        job=str(given["rdzv_id"]),
        token=token_in(os.environ),
    )


def _check_here() -> None:
    """Raise a UserError if this process already runs in a job."""
    job = sys.modules.get("cpudist.job")  # an import takes seconds; without this module there is no job
    if job is not None and job.current() is not None:
        remedy = "call cpudist.shutdown() before notebook_launcher, and cpudist.init() inside the function"
        raise UserError(f"a job runs in this process already, whose settings the ranks would take over; {remedy}")
    launcher = launchers.detect()
    if launcher.placement().size > 1:
        why = f"this process is a rank of {launcher.name} already, and notebook_launcher would start ranks in each"
        raise UserError(f"{why}; call the function itself here, or start this program once, without a launcher")


def _compared(
    function: Callable[..., Any], args: Sequence[Any], given: Mapping[str, Any]
) -> dict[str, tuple[str, str]]:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # a function of C, or an object that can be called
        source = ""
    name = repr(getattr(function, "__name__", type(function).__name__))
    values = {f"args[{index}]": value for index, value in enumerate(args)} | {one: given[one] for one in _COMPARED}
    return {
        "function": (name, digest(source)),
        **{one: (_shown(value), digest(value)) for one, value in values.items()},
    }


def digest(value: Any) -> str:
    """Return a digest of plain values and lists and dicts of them; for other objects it covers only the class."""
    text = json.dumps(value, default=lambda other: type(other).__qualname__, skipkeys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _count(given: Mapping[str, Any], name: str, least: int) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number from {least} on, not {_shown(value)}")
    return value


def _rendezvous_address(given: Mapping[str, Any], nodes: int) -> tuple[str, int]:
    address, port, named = given["master_addr"], given["use_port"], "use_port"
    if not address and given["rdzv_endpoint"]:
        address, _, number = str(given["rdzv_endpoint"]).rpartition(":")
        port = port or number
    if given["master_port"] is not None:
        if port is not None:
            raise UserError("use_port and master_port are two names of one port; give one of them")
        named, port = "master_port", given["master_port"]
    if nodes > 1 and not address:
        why = f"num_nodes={nodes} needs master_addr, the name or address of the node whose cell has node_rank=0"
        raise UserError(f"{why}; give the same one in every node's cell")
    if nodes == 1:
        return "127.0.0.1", 0 if port is None else _as_port(port, named)
    if not isinstance(address, str):
        raise UserError(f"master_addr must be the name or address of a node, not {_shown(address)}")
    return address, PORT if port is None else _as_port(port, named)


def _as_port(value: Any, name: str) -> int:
    """Return a port's number, which users of accelerate may give as text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 65536:
        raise UserError(f"{name} must be a port from 1 to 65535, not {_shown(value)}")
    return number


def _template(text: Any) -> string.Template | None:
    """Return torchelastic's template of a prefix, with ${role_name}, ${local_rank} and ${rank}."""
    if text is None:
        return None
    try:
        template = string.Template(text)
        template.substitute(role_name="", local_rank=0, rank=0)
    except (TypeError, ValueError, KeyError):
        why = f"log_line_prefix_template={_shown(text)} is not understood; write for example '[rank ${{rank}}]: '"
        raise UserError(f"{why}; there are ${{role_name}}, ${{local_rank}} and ${{rank}}") from None
    return template


def _shown(value: Any) -> str:
    """Return a value as short text for an error message."""
    text = repr(value)
    return text if len(text) < 40 and "\n" not in text else f"a {type(value).__name__}"
