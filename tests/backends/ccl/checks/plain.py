"""Sets torch's variables from those of Intel MPI's mpirun, as scripts do that do not import cpudist."""

import os


def set_variables() -> None:
    """Set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT under mpirun; torchrun has set them."""
    if "RANK" in os.environ:
        return
    os.environ.update(RANK=os.environ["PMI_RANK"], WORLD_SIZE=os.environ["PMI_SIZE"], MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getppid() % 10000))  # the ranks' common parent
