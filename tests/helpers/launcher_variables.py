"""The variables that launchers really set for rank 1 (Slurm's and Kubeflow's: from documents)."""

from __future__ import annotations


def _parsed(text: str) -> dict[str, str]:
    """Return variables as `env` shows them."""
    return dict(word.split("=", 1) for word in text.split())


HYDRA = _parsed("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
INTEL = HYDRA | _parsed("I_MPI_HYDRA_UUID=d4290000-8e0b-5026-c860-0600515b653a I_MPI_MPIRUN=mpirun")
# Intel's mpirun is a script that runs the first mpiexec.hydra on PATH: here MPICH's.
INTEL_SCRIPT_MPICH_HYDRA = HYDRA | _parsed("I_MPI_MPIRUN=mpirun")
OPEN_MPI = _parsed(
    "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=1"
)
STEP = _parsed(
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 SLURM_NTASKS=4 "
    "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE=2(x2)"
)
BATCH_SCRIPT = _parsed("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4")
TORCHRUN = _parsed(
    "TORCHELASTIC_RUN_ID=2eb830bd RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=2 "
    "MASTER_ADDR=localhost MASTER_PORT=42805"
)
POD = _parsed(
    "RANK=1 WORLD_SIZE=4 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2"
)
BY_HAND = _parsed("RANK=1 WORLD_SIZE=2 MASTER_ADDR=h0 MASTER_PORT=29500")
ONE_IN_A_POD = POD | {"WORLD_SIZE": "2", "PET_NPROC_PER_NODE": "1"}
