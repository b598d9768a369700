"""Ask the libraries that find their rank by themselves for it; they must name the job's."""

import json
import os
from importlib import import_module
from operator import attrgetter
from types import ModuleType, SimpleNamespace

import torch.distributed as dist

import cpudist

world = cpudist.init()
DEVICES = {"accelerator": "cpu", "devices": world.local_size, "num_nodes": world.node_count}


def deepspeeds(deepspeed: ModuleType) -> SimpleNamespace:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # docs/programs.md says why
    deepspeed.init_distributed()
    comm = deepspeed.comm
    return SimpleNamespace(rank=comm.get_rank(), world_size=comm.get_world_size(), local_rank=comm.get_local_rank())


LIGHTNING = "global_rank world_size local_rank"
ASKED = {
    "accelerate": (lambda m: m.PartialState(cpu=True), "process_index num_processes local_process_index"),
    "transformers": (
        lambda m: m.TrainingArguments("out", use_cpu=True, report_to="none"),
        "process_index world_size local_process_index",
    ),
    "lightning.pytorch": (lambda m: m.Trainer(**DEVICES, logger=False), LIGHTNING),
    "lightning.fabric": (lambda m: m.Fabric(**DEVICES), LIGHTNING),
    "mace.tools.slurm_distributed": (lambda m: m.DistributedEnvironment(), "rank world_size local_rank"),
    "deepspeed": (deepspeeds, "rank world_size local_rank"),
    "mpi4py.MPI": (lambda m: m.COMM_WORLD, "rank size"),
}
if world.launcher not in ("intel-mpi", "mpich"):
    del ASKED["mpi4py.MPI"]  # there is no MPI world
if "SLURM_JOB_ID" in os.environ:
    ASKED["submitit.slurm.slurm"] = lambda m: m.SlurmJobEnvironment(), "global_rank num_tasks local_rank"

answers = {name: attrgetter(*numbers.split())(make(import_module(name))) for name, (make, numbers) in ASKED.items()}
truth = (world.rank, world.size, world.local_rank)
gathered = [None] * world.size
dist.all_gather_object(gathered, {name: found for name, found in answers.items() if found != truth[: len(found)]})
if world.rank == 0:
    print(f"{world.launcher}: {len(answers)} libraries asked, {json.dumps(gathered)} differ", flush=True)
    assert not any(gathered), "a library names another rank"
