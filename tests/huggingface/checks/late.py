"""Rank 1 never comes to a collective; `ddp_timeout` is what ends the job: run by the ranks of a test."""

import sys
import threading

import torch
import torch.distributed as dist
from transformers import TrainingArguments

dist.barrier()  # they import at their own pace
arguments = TrainingArguments(sys.argv[1], ddp_backend=sys.argv[2], ddp_timeout=5, report_to="none")
group = dist.new_group() if sys.argv[3] == "new" else None
if dist.get_rank() == 1:
    threading.Event().wait()
dist.all_reduce(torch.ones(1, device=arguments.device), group=group)
