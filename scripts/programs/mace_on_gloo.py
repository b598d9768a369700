"""mace_run_train with what it leaves out on CPUs: a process group, and a DDP without device_ids."""

import torch
from mace.cli import run_train


class OnCpus(torch.nn.parallel.DistributedDataParallel):
    def __init__(self, module: torch.nn.Module, device_ids: list[int]) -> None:
        super().__init__(module)


torch.distributed.init_process_group("gloo")
run_train.DDP = OnCpus
run_train.main()
