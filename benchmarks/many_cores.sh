#!/bin/bash
# Measure on a machine whose ranks have several cores, in six minutes: benchmarks/many_cores.sh
#
# Collectives and a step under DDP, with 2 ranks, a rank for every four cores, and a rank for each core; the means of
# `cpudist.optimize` on four cores; at the end the number of ranks that trains fastest. Every part has a bound.
cd "$(dirname "$0")/.." || exit 1
cores=$(python -c 'import os; print(len(os.sched_getaffinity(0)))')

measure() {
    echo "== $*"
    timeout "$limit" "$@" || echo "failed, or took longer than $limit s: $*" >&2
}

lscpu | grep -E 'Model name|^CPU\(s\)|Thread|NUMA node\(s\)|L3'
limit=20
for ranks in $(printf '%s\n' 2 $((cores / 4)) "$cores" | awk '$1 > 1 && !seen[$1]++'); do
    measure mpirun -n "$ranks" cpudist bench collectives --quick
done
limit=50
for ranks in $(printf '%s\n' 2 $((cores / 4)) | awk '$1 > 1 && !seen[$1]++'); do
    measure mpirun -n "$ranks" python benchmarks/ddp_step.py --shape 4 128 --quick
done
limit=80
measure env OMP_NUM_THREADS=4 python benchmarks/optimize.py --quick
limit=120
measure cpudist plan --measure
