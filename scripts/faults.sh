#!/usr/bin/env bash
# Breaks jobs of 2 hosts x 2 ranks in every way that we know, under each MPI's mpirun and under cpudist launch, and prints
# how each one ended:
#   scripts/faults.sh [--mpi intel-mpi,mpich,open-mpi] [--launch] [--timeout 20] [FAULT ...]
# Needs root, for the hosts are namespaces of this machine. Takes more than half an hour; docs/reliability.md has its
# last output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
make_environment ccl,plot,dev "${NEWEST[@]}"
build_backend
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec python tests/hosts/faults.py "$@"
