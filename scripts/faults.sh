#!/usr/bin/env bash
# Breaks jobs of 2 hosts x 2 ranks under each MPI's mpirun and under `cpudist launch`, or with --uses loops as users write
# them, and prints how each one ended; see scripts/faults.py for its options. An hour and three quarters of an hour,
# as root: the hosts are namespaces of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
check_machine
make_environment plot,dev "${NEWEST[@]}"
build_backend
exec python scripts/faults.py "$@"
