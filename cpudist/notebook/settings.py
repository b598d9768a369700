"""What `notebook_launcher` was asked for: everything that can be wrong is found here, before anything starts."""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cpudist import backends, environments
from cpudist.console import say
from cpudist.environments import Placement
from cpudist.errors import UserError

PORT = 29500  # as torch's; for several nodes, whose cells have to name the same one
_ROLE = "default"  # what torchelastic calls ranks that were not given a role


@dataclass(frozen=True)
class Settings:
    """One launch, as this node sees it; see `notebook_launcher` for what is not explained here.

    Attributes:
        function: its name.
        num_processes: on each node.
        master_port: 0 for any that is free.
        job: what all nodes' cells call this job, and others do not.
        template: of the line's beginning for all ranks' output; None shows rank 0's as it is.
        token: the secret that whoever joins must know; empty where the user has set none.
    """

    function: str
    num_processes: int
    num_nodes: int
    node_rank: int
    master_addr: str
    master_port: int
    backend: str
    mixed_precision: str
    max_restarts: int
    timeout: float
    template: string.Template | None
    job: str
    token: str

    def placement(self, local_rank: int) -> Placement:
        """The place in the job of a rank of this node."""
        return Placement(
            rank=self.node_rank * self.num_processes + local_rank,
            size=self.num_nodes * self.num_processes,
            local_rank=local_rank,
            local_size=self.num_processes,
            node_rank=self.node_rank,
            node_count=self.num_nodes,
        )

    def prefix(self, local_rank: int) -> str | None:
        """What each line of a rank's output begins with; None where only rank 0's is shown, as it is."""
        if self.template is None:
            return None
        return self.template.substitute(role_name=_ROLE, local_rank=local_rank, rank=self.placement(local_rank).rank)


def check(function: Callable[..., Any], args: Any, given: Mapping[str, Any]) -> Settings:
    """Turn what was given to `notebook_launcher` into `Settings`.

    Raises:
        UserError: something is wrong; in one line, what, and what to do.
    """
    _check_here()
    if not callable(function):
        raise UserError(f"notebook_launcher takes a function, not {_shown(function)}; give its name without brackets")
    if not isinstance(args, (tuple, list)):
        raise UserError(f"args must be a tuple of the function's arguments, not {_shown(args)}; one alone is (x,)")
    processes, nodes = _count(given, "num_processes", 1), _count(given, "num_nodes", 1)
    node_rank = _count(given, "node_rank", 0)
    if node_rank >= nodes:
        raise UserError(f"node_rank={node_rank} is not below num_nodes={nodes}; nodes count from 0")
    address, port = _meeting_place(given, nodes)
    timeout = given["timeout"]
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not 0 < timeout < float("inf"):
        raise UserError(f"timeout must be a number of seconds above 0, not {_shown(timeout)}")
    backend = given["backend"]
    if backend != "auto":
        backends.get(backend)  # an unknown one is an error
    _check_precision(given["mixed_precision"], backend)
    if backend == "xla":
        processes = _processes_on_xla(processes)
    return Settings(
        function=getattr(function, "__name__", type(function).__name__),
        num_processes=processes,
        num_nodes=nodes,
        node_rank=node_rank,
        master_addr=address,
        master_port=port,
        backend=backend,
        mixed_precision=given["mixed_precision"],
        max_restarts=_count(given, "max_restarts", 0),
        timeout=float(timeout),
        template=_template(given["log_line_prefix_template"]),
        job=str(given["rdzv_id"]),
        token=os.environ.get("CPUDIST_TOKEN", ""),
    )


def _check_here() -> None:
    """Refuse to start ranks from where there are some already."""
    job = sys.modules.get("cpudist.job")  # without it there has been none, and importing it takes a while
    if job is not None and job.current() is not None:
        raise UserError(
            "a job runs in this process already, whose settings the ranks would take over; call cpudist.shutdown()"
            " before notebook_launcher, and cpudist.init() inside the function"
        )
    environment = environments.detect()
    if environment.placement().size > 1:
        raise UserError(
            f"this process is a rank of {environment.name} already, and notebook_launcher would start ranks in each of"
            " them; call the function itself here, or start this program once, without a launcher"
        )


def _count(given: Mapping[str, Any], name: str, least: int) -> int:
    value = given[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{name} must be a whole number from {least} on, not {_shown(value)}")
    return value


def _meeting_place(given: Mapping[str, Any], nodes: int) -> tuple[str, int]:
    """Where the nodes meet: from master_addr and master_port, or in torchrun's words, rdzv_endpoint."""
    address, port, endpoint = given["master_addr"], given["master_port"], given["rdzv_endpoint"]
    if given["rdzv_backend"] not in ("static", "c10d"):
        raise UserError(
            f"rdzv_backend={_shown(given['rdzv_backend'])} is not known here: nodes meet at master_addr; leave it out"
        )
    if given["rdzv_conf"]:
        raise UserError("rdzv_conf has no meaning here; timeout= bounds the meeting and every collective")
    if endpoint:
        host, _, number = str(endpoint).rpartition(":") if ":" in str(endpoint) else (str(endpoint), "", "")
        if address not in (None, host) or (number and port not in (None, number, _as_port(number, "rdzv_endpoint"))):
            raise UserError(f"rdzv_endpoint={endpoint!r} contradicts master_addr or master_port; give one of the two")
        address, port = host.strip("[]"), number or port
    if nodes > 1 and not address:
        raise UserError(
            f"num_nodes={nodes} needs master_addr, the name or address of the node whose cell has node_rank=0;"
            " give the same one in every node's cell"
        )
    if nodes == 1:
        return "127.0.0.1", 0 if port is None else _as_port(port, "master_port")
    if not isinstance(address, str):
        raise UserError(f"master_addr must be the name or address of a node, not {_shown(address)}")
    return address, PORT if port is None else _as_port(port, "master_port")


def _as_port(value: Any, name: str) -> int:
    """A port's number, which accelerate's users write as a text."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 65536:
        raise UserError(f"{name} must be a port from 1 to 65535, not {_shown(value)}")
    return number


def _check_precision(precision: Any, backend: str) -> None:
    if precision not in ("no", "bf16", "fp16"):
        reason = "no CPU computes in it" if precision == "fp8" else "it is not known"
        raise UserError(f"mixed_precision={_shown(precision)} cannot be used, {reason}; choose 'no', 'bf16' or 'fp16'")
    if precision == "fp16" and backend != "xla":
        from cpudist.optimization.precision import check_fp16  # late: it imports torch

        check_fp16()


def _processes_on_xla(processes: int) -> int:
    """One process for each device, where PyTorch/XLA has devices of its own; on the CPU as many as were asked for.

    Raises:
        UserError: it cannot be used here.
    """
    from cpudist.backends.xla import devices, versions

    reason = versions.missing()
    kind = devices.choose(None, os.environ).kind
    reason = reason or devices.lacks(kind)
    if reason:
        raise UserError(f"backend xla cannot be used: {reason}")
    found = devices.count(kind)
    if found is None or found == processes:
        return processes
    say(f"xla: starting {found} processes in the place of {processes}, one for each {kind.upper()} device of this node")
    return found


def _template(text: Any) -> string.Template | None:
    """torchelastic's template of a line's beginning, with ${role_name}, ${local_rank} and ${rank}."""
    if text is None:
        return None
    try:
        template = string.Template(text)
        template.substitute(role_name="", local_rank=0, rank=0)
    except (TypeError, ValueError, KeyError):
        raise UserError(
            f"log_line_prefix_template={_shown(text)} is not understood; write for example '[rank ${{rank}}]: ';"
            " there are ${role_name}, ${local_rank} and ${rank}"
        ) from None
    return template


def _shown(value: Any) -> str:
    """A value in an error's line."""
    text = repr(value)
    return text if len(text) < 40 and "\n" not in text else f"a {type(value).__name__}"
