#!/usr/bin/env bash
# Is a step of training ever slower pinned than not? Two ranks on this machine under each launcher, both taking turns in one
# job; about 8 minutes, on a machine that does nothing else. docs/placement.md has its last output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
make_environment ccl,plot,dev "${NEWEST[@]}"
build_backend
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}"
# Without it the ranks that are not pinned would compute with all cores each, and be slower than need be.
export OMP_NUM_THREADS=1
readonly STEPS=tests/pinning/step_time.py

say "torchrun"
timeout 300 torchrun --standalone --nproc-per-node=2 $STEPS
say "mpirun, which pins"
timeout 300 mpirun -n 2 python $STEPS
say "mpirun, told not to pin"
I_MPI_PIN=off timeout 300 mpirun -n 2 python $STEPS
say "srun --cpu-bind=none"
timeout 300 python - <<'PROGRAM'
import sys
import tempfile
from pathlib import Path

import jobs
from slurm_node import slurm_node

with tempfile.TemporaryDirectory() as folder, slurm_node(Path(folder)) as variables:
    path = f"{jobs.BIN}:{variables['PATH']}"
    srun = ["srun", "--ntasks=2", "--mpi=none", "--cpu-bind=none", sys.executable, "tests/pinning/step_time.py"]
    done = jobs.run(srun, 240, {**variables, "PATH": path})
    sys.exit(done.output) if done.returncode else print(done.stdout, end="")
PROGRAM
