"""Uses accelerate alone, then runs the modules that are named as arguments: run by the ranks of a test."""

import os
import runpy
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 2))
gathered = accelerator.gather(torch.tensor([accelerator.process_index]))
accelerator.print(type(model).__name__, dist.get_backend(), accelerator.num_processes, gathered.tolist(), flush=True)
for name in sys.argv[1:]:
    # As in a new process; the modules destroy the process group at their end.
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    runpy.run_module(name, run_name="__main__")
    if os.environ["RANK"] == "0":
        print("done:", name, flush=True)
