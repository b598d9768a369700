#!/usr/bin/env bash
# Compares a training step pinned and not pinned, on two ranks of this machine under each launcher; both take turns in one
# job. About 8 minutes, on a machine that does nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
# Unpinned ranks would otherwise compute with as many threads as there are cores each.
export OMP_NUM_THREADS=1
readonly STEPS=tools/step_time.py

say "torchrun"
timeout 300 torchrun --standalone --nproc-per-node=2 $STEPS
say "mpirun, which pins"
timeout 300 mpirun -n 2 python $STEPS
say "mpirun, told not to pin"
I_MPI_PIN=off timeout 300 mpirun -n 2 python $STEPS
say "srun --cpu-bind=none"
PYTHONPATH="$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" timeout 300 python - <<'PROGRAM'
import sys
import tempfile
from pathlib import Path

import jobs
from slurm_node import slurm_node

with tempfile.TemporaryDirectory() as folder, slurm_node(Path(folder)) as variables:
    path = f"{jobs.BIN}:{variables['PATH']}"
    srun = ["srun", "--ntasks=2", "--mpi=none", "--cpu-bind=none", sys.executable, "tools/step_time.py"]
    done = jobs.run(srun, 240, {**variables, "PATH": path})
    sys.exit(done.output) if done.returncode else print(done.stdout, end="")
PROGRAM
