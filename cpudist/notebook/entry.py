"""Run a function of a notebook on several ranks, with the signature of accelerate's launcher."""

import os
import pickle
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

from cpudist.console import say
from cpudist.notebook.nodes import Nodes
from cpudist.notebook.pickling import pack
from cpudist.notebook.ranks import LocalRanks
from cpudist.notebook.result import CellInterrupted, Failure, Result
from cpudist.notebook.settings import Settings, checked


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int = 2,
    mixed_precision: str = "no",
    use_port: int | str | None = None,
    master_addr: str | None = None,
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
    *,
    backend: str = "auto",
    timeout: float | None = None,
    master_port: int | str | None = None,
    interface: str | None = None,
    compress: str | None = None,
    resume: Literal["auto", "never"] | None = None,
    async_checkpoint: bool | None = None,
    stall: float | None = None,
    balance: bool | None = None,
    record: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Run a function of this notebook, or script, on several ranks, and return its value on rank 0.

    Every rank is a fresh process, with its share of this node's cores. It gets `function`, `args` and everything in the
    notebook that they use. The job is started before the function is called: `cpudist.init()` returns the `World`, and
    accelerate's ``Accelerator()`` and Trainer find the job. Rank 0's output and all ranks' standard error appear here
    as they come. Interrupting the cell ends all ranks.

    With several nodes, one notebook on each node makes the same call, except for `node_rank`, in any order.

    Args:
        function: the function that every rank runs.
        args: its arguments.
        num_processes: ranks on each node.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``, the number format of accelerate and Trainer.
        use_port: a free port of node 0; the default is 29500 with several nodes, and any free port with one.
        master_addr: name or address of node 0, as the other nodes reach it; needed with several nodes.
        node_rank: number of this node, from 0 on.
        num_nodes: number of nodes.
        rdzv_backend, rdzv_endpoint, rdzv_conf, monitor_interval: accepted without effect, because torchelastic is not
            used; but with several nodes `rdzv_endpoint` replaces a missing `master_addr`.
        rdzv_id: the job's name; notebooks with another name do not join.
        max_restarts: how often to start all ranks again after a failure. CPUDIST_RESTART_COUNT counts them.
        log_line_prefix_template: shows all ranks' output, each line with this prefix, as torchelastic does:
            ``"[${role_name}${rank}]: "``, or with ``${local_rank}``.
        backend: as for `cpudist.init`.
        timeout: bound on the start and on every collective, in seconds; 300 by default.
        master_port: another name of `use_port`.
        interface, compress, resume, async_checkpoint, stall, balance: as for `cpudist.init`.
        record: the file of the run record, which rank 0 writes.
        options: the backend's own options, as for `cpudist.init`.

    Returns:
        The value that `function` returned on rank 0; None on all nodes but node 0.

    Raises:
        UserError: an argument is wrong, or an object that `function` uses cannot be serialised; no rank was started.
        RankFailed: a rank was killed, exited without an exception, timed out in a collective, or failed on another
            node. Other exceptions of ranks are raised here, caused by a `RankFailed` with the rank's traceback.
        StartupTimeout: node 0's cell cannot be reached in time.
        KeyboardInterrupt: the cell was interrupted, and with it all ranks.

    Examples:
        >>> def work(length):
        ...     total = torch.ones(length)
        ...     torch.distributed.all_reduce(total)
        ...     return total
        >>> cpudist.notebook_launcher(work, (3,), num_processes=2)
        Launching training on 2 CPUs.
        tensor([2., 2., 2.])
    """
    given = {**locals()}
    settings = checked(given.pop("function"), given.pop("args"), given)
    processes = settings.num_processes
    print(f"Launching training on {'one CPU' if processes == 1 else f'{processes} CPUs'}.", flush=True)
    payload = os.memfd_create("cpudist-notebook")
    try:
        with open(payload, "wb", closefd=False) as file:
            pickle.dump((list(sys.path), settings), file)  # for `worker.py`
            pack(function, args, file)
        outcome = _run(settings, payload)
    except KeyboardInterrupt:
        raise CellInterrupted("interrupted; no rank runs any more") from None
    finally:
        os.close(payload)
    if isinstance(outcome, Failure):
        outcome.raise_here()
    return outcome.value


def _run(settings: Settings, payload: int) -> Result | Failure:
    """Make attempts until one succeeds or a restart is useless or not allowed; return the last outcome."""
    restarts, run_id, failed = 0, uuid.uuid4().hex, False
    with closing(Nodes(settings)) as nodes:
        try:
            while True:
                with closing(LocalRanks(settings, nodes, payload, restarts, run_id)) as ranks:
                    outcome = ranks.run()
                if isinstance(outcome, Result):
                    return outcome
                if outcome.mistake or outcome.stopped or restarts == settings.max_restarts:
                    failed = True
                    return outcome
                restarts += 1
                say(f"{outcome.who} {outcome.said}")
                say(f"starting again ({restarts} of {settings.max_restarts})")
        finally:
            nodes.leave(failed)
