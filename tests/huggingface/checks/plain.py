"""Fills TrainingArguments in code and from a file, without cpudist-train: FOLDER, and what to check."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

# The first import of all: transformers 5 then imports torch in the middle of training_args.
from transformers import HfArgumentParser, TrainingArguments  # isort: skip

import torch.distributed as dist

from cpudist import job

FOLDER, CHECK = Path(sys.argv[1]), sys.argv[2]


@dataclass
class OwnArguments(TrainingArguments):
    extra: int = 3


assert job.current() is None, "imports start nothing"
if CHECK == "inert":
    arguments = TrainingArguments(str(FOLDER), ddp_backend="gloo", use_cpu=True, report_to="none")
    assert arguments.ddp_timeout == 1800
    assert arguments.world_size == 2
    assert job.current() is None
    print(f"no job on {dist.get_backend()}", flush=True)  # one write, which the other rank's cannot part
elif CHECK == "refused":
    TrainingArguments(str(FOLDER), use_ipex=True)
else:
    file = FOLDER / "flags.json"
    (own,) = HfArgumentParser(OwnArguments).parse_json_file(str(file))
    running = job.current()
    assert running is not None
    assert (own.use_ipex, own.no_cuda, own.use_cpu, own.extra, own.ddp_timeout) == (True, True, True, 4, 300)
    assert (own.world_size, own.local_rank, dist.get_backend()) == (2, running.world.local_rank, "ccl")
    again = TrainingArguments(str(FOLDER), ddp_backend="ccl", use_ipex=True, no_cuda=True)
    assert job.current() is running
    print(json.dumps(again.to_dict()["use_ipex"]), flush=True)
    dist.barrier()  # both have written
    if running.world.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    dist.barrier()
