"""Interrupt cells of a Jupyter kernel whose ranks are at work, and check that no process is left.

python tests/notebook/checks/interrupt_cells.py TIMES
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
from jupyter_client import KernelManager
from jupyter_client.blocking import BlockingKernelClient

_CELL_SECONDS = 120

DEFINE = """
import cpudist
def work(steps):
    world = cpudist.init()
    import torch.distributed as dist
    dist.barrier()
    if world.rank == 0:
        print("at work", flush=True)
    for _ in range(steps):
        dist.barrier()
    return world.size
"""
LAUNCH = "print('result', cpudist.notebook_launcher(work, ({steps},)))"


def run(client: BlockingKernelClient, code: str, at_work: Callable[[], object] = lambda: None) -> str:
    """Run a cell to its end, and call `at_work` when its ranks are at work.

    Returns:
        What it has printed, and the traceback if it has raised.
    """
    said = ""

    def hear(message: dict[str, Any]) -> None:
        nonlocal said
        content = message["content"]
        said += content.get("text", "") + "\n".join(content.get("traceback", ()))
        if "at work" in content.get("text", ""):
            at_work()

    client.execute_interactive(code, output_hook=hear, timeout=_CELL_SECONDS)
    return said


def main(times: int) -> None:
    """Interrupt so many cells, then run one to its end."""
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    kernel, processes = psutil.Process(manager.provisioner.pid), []

    def interrupt(after: float) -> None:
        time.sleep(after)
        processes.extend(kernel.children(recursive=True))
        manager.interrupt_kernel()

    try:
        client.wait_for_ready(timeout=_CELL_SECONDS)
        run(client, DEFINE)
        for number in range(times):
            at_different_moments = functools.partial(interrupt, 0.1 * (number % 5))
            said = run(client, LAUNCH.format(steps=10**9), at_different_moments)
            assert "KeyboardInterrupt" in said, said
            _, alive = psutil.wait_procs(processes, timeout=15)
            assert not alive, f"left behind: {alive}"
            assert not kernel.children(recursive=True)
        assert processes, "nothing ran that could be interrupted"
        said = run(client, LAUNCH.format(steps=10))
        assert "result 2" in said, said
        print(f"{times} interrupted cells left nothing")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
