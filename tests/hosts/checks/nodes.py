"""A notebook's cells on one of two nodes, one after the other: `nodes.py NODE CASE…`; prints what each came to."""

import os
import signal
import sys
import time

import cpudist


def fails() -> None:
    world = cpudist.init()
    if world.rank == 1:
        raise ValueError("no such thing")
    import torch.distributed as dist

    dist.barrier()


def fails_once() -> str:
    if os.environ["CPUDIST_RESTART_COUNT"] == "0":
        fails()
    return f"ranks {cpudist.init().size}, attempt {os.environ['CPUDIST_RESTART_COUNT']}"


def is_interrupted() -> None:
    import torch.distributed as dist

    world = cpudist.init()
    dist.barrier()
    if world.rank == 1:
        os.kill(os.getppid(), signal.SIGINT)  # as Jupyter does with the cell
    time.sleep(1000)


def other() -> None:
    """What nobody else runs."""


def launch(case: str, node: int) -> object:
    options = {"num_processes": 1, "num_nodes": 2, "node_rank": node, "master_addr": "h0", "timeout": 60}
    calls = {
        "fails": (fails, (), {}),
        "restart": (fails_once, (), {"max_restarts": 1}),
        "interrupt": (is_interrupted, (), {}),
        "function": ((fails, other)[node], (), {}),
        "nodes": (fails, (), {"num_nodes": 2 + node}),
        "number": (fails_once, (), {"node_rank": 0, "timeout": 15}),
    }
    if case == "number":
        time.sleep(node)  # so that it is node 1's cell that comes second
    function, arguments, own = calls[case]
    return cpudist.notebook_launcher(function, arguments, **{**options, **own})


def main(node: int, cases: list[str]) -> None:
    for case in cases:
        try:
            print(case, "gives", launch(case, node), flush=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
            print(case, "raises", type(error).__name__, error, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
