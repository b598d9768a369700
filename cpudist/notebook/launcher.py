"""`cpudist.notebook_launcher`: the signature that accelerate's users know, on a job of cpudist's."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cpudist.console import say
from cpudist.notebook.attempt import Attempt
from cpudist.notebook.carry import pack
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.outcome import Failure, Result
from cpudist.notebook.settings import Settings, check
from cpudist.notebook.worker import Orders, write_orders


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int = 2,
    num_nodes: int = 1,
    node_rank: int = 0,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    backend: str = "auto",
    mixed_precision: str = "no",
    max_restarts: int = 0,
    timeout: float = 300.0,
    log_line_prefix_template: str | None = None,
    *,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
) -> Any:
    """Run a function of this notebook, or script, on several ranks, and return what it returns on rank 0.

    Every rank is a fresh process, with its share of this node's cores. `function`, `args` and whatever they use of the
    notebook are carried over; there, the job runs already: `cpudist.init()` gives the `World`, accelerate's
    ``Accelerator()`` and Trainer find it too. Rank 0's output appears here as it comes, and all ranks' standard error.
    Interrupting the cell ends all ranks.

    With several nodes, one notebook on each calls this alike but for `node_rank`, in any order.

    Args:
        function: what every rank runs.
        args: its arguments.
        num_processes: ranks on each node.
        num_nodes: how many nodes there are.
        node_rank: which of them this is, from 0 on.
        master_addr: name or address of node 0, as the other nodes reach it; needed with several nodes.
        master_port: a free port there; by default 29500 with several nodes, and any for one.
        backend: as for `cpudist.init`. With xla on TPUs or GPUs there is one rank for each device of the node.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``: what accelerate and Trainer compute in.
        max_restarts: how often to start all ranks again after a failure; CPUDIST_RESTART_COUNT tells them.
        timeout: bound on the start and on every collective, in seconds.
        log_line_prefix_template: shows all ranks' output, each line behind this, as torchelastic does:
            ``"[${role_name}${rank}]: "``, or with ``${local_rank}``.
        rdzv_backend: "static" or "c10d"; both mean the same here.
        rdzv_endpoint: ``"host:port"`` in the place of `master_addr` and `master_port`.
        rdzv_conf: must be empty: `timeout` bounds the meeting.
        rdzv_id: the job's name; notebooks with another one do not join.

    Returns:
        What `function` returned on rank 0, on node 0; None on the others.

    Raises:
        UserError: an argument is wrong, or something that `function` uses cannot be carried over; nothing was started.
        RankFailed: a rank was killed, or failed on another node. An exception of a rank of this node is raised as it
            is, with that rank's traceback as its cause.
        StartupTimeout: node 0's cell cannot be reached in time.
    """
    given = {**locals()}
    settings = check(given.pop("function"), given.pop("args"), given)
    payload = os.memfd_create("cpudist-notebook")
    try:
        with open(payload, "wb", closefd=False) as file:
            write_orders(Orders(list(sys.path), settings.backend, settings.timeout), file)
            pack(function, args, file)
        outcome = _run(settings, payload)
    finally:
        os.close(payload)
    if isinstance(outcome, Failure):
        outcome.raise_here()
    return outcome.value if isinstance(outcome, Result) else None


def _run(settings: Settings, payload: int) -> Result | Failure:
    """All attempts, until one has come to its end or there are to be no more."""
    nodes = Nodes(settings)
    outcome: Result | Failure | None = None
    try:
        for restarts in range(settings.max_restarts + 1):
            if restarts:
                assert isinstance(outcome, Failure)
                say(f"{outcome.who} {outcome.said}")
                say(f"starting again ({restarts} of {settings.max_restarts})")
            attempt = Attempt(settings, nodes, payload, restarts)
            try:
                outcome = attempt.run()
            finally:
                attempt.close()
            if isinstance(outcome, Result) or outcome.mistake or outcome.stopped:
                break
        assert outcome is not None
        nodes.leave(failed=isinstance(outcome, Failure))
        return outcome
    except BaseException:  # the cell was interrupted
        nodes.leave(failed=False)
        raise
    finally:
        nodes.close()
