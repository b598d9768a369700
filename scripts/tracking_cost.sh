#!/usr/bin/env bash
# What it costs a call that each rank can say where it is: alone, and on two ranks of this machine; about 3 minutes.
# docs/reliability.md has its last output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
make_environment ccl,plot,dev "${NEWEST[@]}"
build_backend
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
readonly COST=tests/backends/ccl/tracking_cost.py

say "one process, with what tracks a call and compiled without"
timeout 300 python $COST
say "two ranks, with the thread that tells where they are and without"
timeout 300 mpirun -n 2 python $COST
