#!/bin/bash
# Measure on a machine whose ranks have several cores, in about twenty minutes: benchmarks/many_cores.sh [--quick]
#
# Collectives, a step under DDP and the choices of `cpudist.optimize`, with 2 ranks, a rank for every four cores, and a
# rank for each core; at the end the number of ranks that trains fastest. Every part has a bound.
cd "$(dirname "$0")/.." || exit 1
cores=$(python -c 'import os; print(len(os.sched_getaffinity(0)))')
quick=$1

measure() {
    echo "== $*"
    timeout 600 "$@" || echo "failed, or took longer than 10 minutes: $*" >&2
}

lscpu | grep -E 'Model name|^CPU\(s\)|Thread|NUMA node\(s\)|L3'
for ranks in $(printf '%s\n' 2 $((cores / 4)) "$cores" | awk '$1 > 1 && !seen[$1]++'); do
    measure mpirun -n "$ranks" cpudist bench collectives $quick
done
for ranks in $(printf '%s\n' 2 $((cores / 4)) | awk '$1 > 1 && !seen[$1]++'); do
    measure mpirun -n "$ranks" python benchmarks/ddp_step.py --shape 4 128 $quick
    measure mpirun -n "$ranks" python benchmarks/optimize.py $quick
done
measure cpudist plan --measure
