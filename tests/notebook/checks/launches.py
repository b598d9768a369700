"""Starts jobs as a notebook's cells do, and prints their results: launches.py result|failures|sleep."""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

import cpudist
from cpudist.job.script_groups import check_backend


class Unlucky(Exception):
    pass


class Learner(torch.nn.Module):
    """Records the number formats that it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.kinds: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layer(x)
        self.kinds.add(found.dtype)
        return {"loss": torch.nn.functional.cross_entropy(found.float(), labels)}


examples = [{"x": torch.randn(4), "labels": torch.tensor(one % 2)} for one in range(16)]


def make(scale: float):
    weights = torch.full((4,), scale)

    def work(name: str, folder: str):
        import torch.distributed as dist
        from transformers import Trainer, TrainingArguments

        world = cpudist.init()
        atexit.register(print, f"rank {world.rank} exits")
        print(f"rank {world.rank} prints")
        print(f"rank {world.rank} warns", file=sys.stderr)
        total = weights * (world.rank + 1)
        dist.all_reduce(total)
        everyone = [None] * world.size
        dist.all_gather_object(everyone, Learner())  # pickled by reference: `__main__` has to be the notebook's
        assert [type(one) for one in everyone] == [Learner] * world.size

        options = {"max_steps": 3, "per_device_train_batch_size": 2, "dataloader_num_workers": 1, "save_strategy": "no"}
        arguments = TrainingArguments(folder, **options, report_to=[], disable_tqdm=True)
        assert (arguments.world_size, world.launcher, dist.get_backend()) == (2, "notebook", "ccl")
        model = Learner()
        Trainer(model, arguments, train_dataset=examples).train()
        assert model.kinds == {torch.bfloat16}
        weight = model.layer.weight.detach()
        trained = [torch.empty_like(weight) for _ in range(world.size)]
        dist.all_gather(trained, weight)
        assert torch.equal(*trained)
        return {"name": name, "total": total, "net": everyone[1], "cpus": os.sched_getaffinity(0)}

    return work


def fails(how: str) -> str:
    world = cpudist.init()
    attempt = os.environ["CPUDIST_RESTART_COUNT"]
    if how == "raise":
        check_backend(cpudist.job.current(), "gloo")  # as a library that asks for it
        print(f"rank {world.rank} prints")
    elif world.rank == 0:
        print("run", os.environ["CPUDIST_RUN_ID"], flush=True)
    torch.distributed.barrier()
    if world.rank == 1 and attempt == "0":
        if how == "raise":
            raise Unlucky("no such thing")
        os.kill(os.getpid(), signal.SIGKILL)
    torch.distributed.barrier()
    return f"attempt {attempt}"


def sleeps() -> None:
    world = cpudist.init()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)  # must be killed with the rank
    torch.distributed.barrier()
    if world.rank == 0:
        print("asleep", flush=True)
    time.sleep(1000)


def main(what: str) -> None:
    if what == "result":
        # The notebook's own threads, MPI, process group and gradient do not exist in the ranks.
        from mpi4py import MPI

        assert MPI.Is_initialized()
        torch.ones(500, 500) @ torch.ones(500, 500)
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        Learner()(examples[0]["x"][None], examples[0]["labels"][None])["loss"].backward()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "record.json")
            options = {"mixed_precision": "bf16", "backend": "ccl", "interface": "lo", "record": file}
            found = cpudist.notebook_launcher(make(3.0), ("x", folder), **options)
            record = json.loads(file.read_text())
        assert (record["exit"], record["steps"], record["network"]["interface"]) == ("completed", 3, "lo"), record
        assert isinstance(found["net"], Learner)
        assert (found["name"], found["total"].tolist()) == ("x", [9.0] * 4)
        assert len(found["cpus"]) == max(1, len(os.sched_getaffinity(0)) // 2)
        torch.distributed.destroy_process_group()
    if what == "failures":
        try:
            cpudist.notebook_launcher(fails, ["raise"], log_line_prefix_template="[${role_name}${rank}]: ")
        except Unlucky:
            print("\ncaught it")
            traceback.print_exc(file=sys.stdout)
        elastic = {"rdzv_backend": "c10d", "monitor_interval": 1}  # as accelerate's guide has it for restarts
        print(cpudist.notebook_launcher(fails, ["kill"], max_restarts=1, **elastic))
    if what == "sleep":
        cpudist.notebook_launcher(sleeps)


if __name__ == "__main__":
    main(sys.argv[1])
