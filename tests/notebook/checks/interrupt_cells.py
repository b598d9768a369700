"""Interrupt cells of a Jupyter kernel whose ranks are at work, and check that no process is left.

python tests/notebook/checks/interrupt_cells.py TIMES
"""

from __future__ import annotations

import sys
import time

import psutil
from jupyter_client import KernelManager
from jupyter_client.blocking import BlockingKernelClient

_WAIT_SECONDS = 120  # for the next message of the kernel

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


class Kernel:
    """A Jupyter kernel whose cells are interrupted."""

    def __init__(self) -> None:
        self._manager = KernelManager()
        self._manager.start_kernel()
        self._client: BlockingKernelClient = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_WAIT_SECONDS)
        self.process = psutil.Process(self._manager.provisioner.pid)

    def start(self, code: str) -> None:
        """Start a cell and wait until its ranks are at work."""
        self._client.execute(code)
        said = ""
        while "at work" not in said:
            content = self._client.get_iopub_msg(timeout=_WAIT_SECONDS)["content"]
            said += content.get("text", "")

    def run(self, code: str) -> str:
        """Run a cell to its end; return what it has printed, and the traceback if it has raised."""
        self._client.execute(code)
        return self.finish()

    def finish(self) -> str:
        """Wait until the cell has ended; return what it has printed, and the traceback if it has raised."""
        said, idle = "", False
        while not idle:
            message = self._client.get_iopub_msg(timeout=_WAIT_SECONDS)
            content = message["content"]
            if message["msg_type"] == "stream":
                said += content["text"]
            elif message["msg_type"] == "error":
                said += "\n".join(content["traceback"])
            idle = message["msg_type"] == "status" and content["execution_state"] == "idle"
        return said

    def interrupt(self) -> float:
        """Interrupt the running cell; return the seconds until it and all processes of the kernel have ended."""
        began, below = time.monotonic(), self.process.children(recursive=True)
        assert below, "nothing runs that could be interrupted"
        self._manager.interrupt_kernel()
        said = self.finish()
        assert "KeyboardInterrupt" in said, said
        _, alive = psutil.wait_procs(below, timeout=15)
        assert not alive, f"left behind: {alive}"
        assert not self.process.children(recursive=True)
        return time.monotonic() - began

    def close(self) -> None:
        """Stop the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def main(times: int) -> None:
    """Interrupt so many cells, then run one to its end."""
    kernel = Kernel()
    try:
        kernel.run(DEFINE)
        seconds = []
        for number in range(times):
            kernel.start(LAUNCH.format(steps=10**9))
            time.sleep(0.1 * (number % 5))  # at different moments
            seconds.append(kernel.interrupt())
            print(f"{number + 1}: all gone after {seconds[-1]:.1f} s", flush=True)
        said = kernel.run(LAUNCH.format(steps=10))
        assert "result 2" in said, said
        print(f"{times} interrupted cells left nothing; all gone after {min(seconds):.1f} to {max(seconds):.1f} s")
    finally:
        kernel.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
