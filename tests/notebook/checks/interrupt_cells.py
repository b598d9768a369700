"""Interrupt cells of a Jupyter kernel that show their ranks at work, and check that no process is left.

python tests/notebook/checks/interrupt_cells.py TIMES
"""

import functools
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
from jupyter_client import KernelManager
from jupyter_client.blocking import BlockingKernelClient

from cpudist.waiting import poll

_CELL_SECONDS = 120

DEFINE = """
import cpudist
def work(steps, late=0):
    import time
    import torch.distributed as dist
    world = cpudist.init()
    cpudist.job.current().record.training.losses += [3.0, 2.5, 1.0]  # as Trainer does
    dist.barrier()
    if late:
        cpudist.job.current().set_timeout(4)  # the start may take longer
    time.sleep(late * world.rank)
    for _ in range(steps):
        dist.barrier()
"""
LAUNCH = "cpudist.notebook_launcher(work, ({steps}, {late}))"

_START = re.compile("the ranks start")
_RANKS = re.compile(r"rank +host .+\n(\d .+ in barrier #\d+ \(cell \d+, line 12\) .+\n){2}loss 3 to 1  █▆▁")


def run(
    client: BlockingKernelClient,
    code: str,
    at_work: Callable[[], object] | None = None,
    shown: re.Pattern[str] = _RANKS,
) -> str:
    """Run a cell, call `at_work` when it shows the ranks at work, and return its output and traceback."""
    said, places = "", dict[str, dict[str, str]]()

    def hear(message: dict[str, Any]) -> None:
        nonlocal said, at_work
        content = message["content"]
        said += content.get("text", "") + "\n".join(content.get("traceback", ()))
        if message["msg_type"] in ("display_data", "update_display_data"):
            place = content["transient"]["display_id"]
            assert (place in places) == (message["msg_type"] == "update_display_data")
            places[place] = content["data"]
            if at_work is not None and shown.fullmatch(content["data"]["text/plain"]):
                at_work()
                at_work = None

    client.execute_interactive(code, output_hook=hear, timeout=_CELL_SECONDS)
    assert at_work is None, f"the ranks were not shown: {places}"
    assert not any(data["text/plain"] for data in places.values()), "nothing is left of them"
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
        assert poll(lambda: sum("cpudist.notebook.worker" in " ".join(one.cmdline()) for one in children()) > 1, 60)
        processes.extend(children())
        manager.interrupt_kernel()

    def children() -> list[psutil.Process]:
        return kernel.children(recursive=True)

    try:
        client.wait_for_ready(timeout=_CELL_SECONDS)
        run(client, DEFINE)
        for number in range(times + 1):
            at_different_moments = functools.partial(interrupt, 0.1 * (number % 5))
            said = run(client, LAUNCH.format(steps=10**9, late=0), at_different_moments, _RANKS if number else _START)
            assert said.splitlines()[1:] == ["cpudist: interrupted; no rank runs any more"], said
            _, alive = psutil.wait_procs([*processes, *children()], timeout=15)
            alive = [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]  # interrupted inside Popen
            assert not alive, f"left behind: {alive}"
        assert processes, "nothing ran that could be interrupted"
        said = run(client, LAUNCH.format(steps=1, late=1000))
        cause = r"RankFailed: a collective timed out: rank 1 \(.+\) never reached .+; it was last in cell \d+, line 10"
        assert re.fullmatch(cause, said.splitlines()[-1]), said
        print(f"{times} interrupted cells left nothing")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
