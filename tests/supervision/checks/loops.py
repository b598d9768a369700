"""Loops as users write them, with a fault of rank 1 in step 10 of 30: loops.py USE FAULT.

USE: the name of one of the functions below. FAULT: none; late (15 s); early (its loop has fewer steps); exit
(`sys.exit(0)` before the first step); exit3 (`sys.exit(3)`); abort (MPI_Abort); raise; kill, stop (SIGKILL, SIGSTOP);
lost (somebody else takes its host down).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

USE, FAULT = sys.argv[1:]
STEPS, FAULTY = 10_000 if FAULT == "lost" else 30, 0 if FAULT == "exit" else 10
FAULTS: dict[str, Callable[[], object]] = {
    "late": lambda: time.sleep(15),
    "exit": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "abort": lambda: sys.modules["mpi4py.MPI"].COMM_WORLD.Abort(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def steps(rank: int) -> Iterator[int]:
    """Yield the numbers of the steps; the fault comes between two of them."""
    for step in range(STEPS):
        if step == FAULTY and rank == 1 and FAULT != "none":
            print(f"fault at {time.time():.2f}", file=sys.stderr, flush=True)
            if FAULT == "raise":
                raise ValueError("a bad batch")
            if FAULT == "early":
                return
            FAULTS.get(FAULT, int)()
        yield step
        time.sleep(0.05)
    if rank == 0:
        print("trained", flush=True)


def train(rank: int, model: Any, optimizer: Any = None, backward: Any = torch.Tensor.backward) -> None:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in steps(rank):
        backward(model(torch.randn(64, 64)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()


def new_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))


def ddp() -> None:
    import cpudist

    train(cpudist.init().rank, cpudist.wrap(new_model()))
    cpudist.shutdown()


def plain() -> None:
    dist.init_process_group("gloo")
    train(dist.get_rank(), torch.nn.parallel.DistributedDataParallel(new_model()))


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), new_model()
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    train(accelerator.process_index, *prepared, accelerator.backward)


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    import cpudist

    train(cpudist.init().rank, fully_shard(new_model()))


def calls() -> None:
    import cpudist

    for _ in steps(cpudist.init().rank):
        dist.all_reduce(torch.ones(100))


def trainer() -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    class Faults(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            next(numbers)  # stops a rank whose steps are over

    size = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_attention_heads=2, **size))
    rows = [{"input_ids": torch.randint(5, 99, (8,)), "labels": i % 2} for i in range(64)]
    arguments = TrainingArguments("out", max_steps=STEPS, report_to="none", save_strategy="no", use_cpu=True)
    numbers = steps(arguments.process_index)
    with suppress(StopIteration):
        Trainer(model, arguments, train_dataset=rows, callbacks=[Faults()]).train()
    next(numbers, None)


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[USE]()
