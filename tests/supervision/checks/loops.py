"""Loops as users write them, with a fault of rank 1 in step 10 of 30: loops.py USE FAULT.

USE: the name of one of the functions below. FAULT: none; late (15 s); early (its loop has fewer steps); exit, exit3
(`sys.exit` with 0 and 3); raise; kill, stop (SIGKILL, SIGSTOP); lost (somebody else takes its host down).
"""

import os
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

USE, FAULT = sys.argv[1:]
LATE_SECONDS = 15
FAULTS = {
    "late": lambda: time.sleep(LATE_SECONDS),
    "exit": lambda: sys.exit(0),
    "exit3": lambda: sys.exit(3),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def steps(rank: int) -> Iterator[int]:
    """Yield the numbers of the steps; the fault comes between two of them."""
    for step in range(10_000 if FAULT == "lost" else 30):
        if step == 10 and rank == 1 and FAULT != "none":
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


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))


def calls() -> None:
    import cpudist

    for _ in steps(cpudist.init().rank):
        dist.all_reduce(torch.ones(100))


def ddp() -> None:
    import cpudist

    world = cpudist.init()
    trained = cpudist.wrap(model())
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    for _ in steps(world.rank):
        trained(torch.randn(64, 64)).pow(2).mean().backward()
        cpudist.step(optimizer)
        optimizer.zero_grad()
    cpudist.shutdown()


def plain() -> None:
    dist.init_process_group("gloo")
    trained = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
    for _ in steps(dist.get_rank()):
        trained(torch.randn(64, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    trained, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1e-3))
    for _ in steps(accelerator.process_index):
        accelerator.backward(trained(torch.randn(64, 64)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    import cpudist

    world = cpudist.init()
    sharded = fully_shard(model())
    optimizer = torch.optim.SGD(sharded.parameters(), lr=1e-3)
    for _ in steps(world.rank):
        sharded(torch.randn(64, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def trainer() -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    class Faults(TrainerCallback):
        def on_train_begin(self, args, state, control, **_) -> None:  # type: ignore[no-untyped-def]
            self.steps = steps(args.process_index)

        def on_step_begin(self, args, state, control, **_) -> None:  # type: ignore[no-untyped-def]
            control.should_training_stop = next(self.steps, None) is None

        def on_train_end(self, args, state, control, **_) -> None:  # type: ignore[no-untyped-def]
            next(self.steps, None)

    size = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 32}
    net = BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_attention_heads=2, **size))
    rows = [{"input_ids": torch.randint(5, 99, (8,)), "labels": i % 2} for i in range(64)]
    arguments = TrainingArguments(
        "out", max_steps=10_000 if FAULT == "lost" else 30, report_to="none", save_strategy="no", use_cpu=True
    )
    Trainer(net, arguments, train_dataset=rows, callbacks=[Faults()]).train()


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[USE]()
