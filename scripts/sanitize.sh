#!/usr/bin/env bash
# The ccl backend's checks under AddressSanitizer and ThreadSanitizer: scripts/sanitize.sh [address|thread]...
# In the environment that is active (scripts/test.sh sanitize makes one). Slow, so not a part of CI.
#
# Only our own code is instrumented; torch, MPI, oneCCL and Python are not, so what they do among themselves is ignored.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The backend, instrumented, in the place in a cache of its own where cpudist looks for it.
build() {
    python - "$1" <<'PYTHON'
import subprocess
import sys

from cpudist import compiler
from cpudist.backends.ccl import compilation, toolchain

found, module = compiler.find_compiler(), compilation.module(toolchain.find_oneccl())
assert found is not None
target = compiler.build_folder() / module.key / found.label / module.file
target.parent.mkdir(parents=True, exist_ok=True)
if not target.exists():
    command = module.command(found, target)
    flags = [f"-fsanitize={sys.argv[1]}", "-fno-omit-frame-pointer", "-g1", "-O1"]
    subprocess.run([*command, *flags], check=True)
PYTHON
}

# check RANKS SCRIPT ARGUMENTS...
check() {
    local ranks=$1
    shift
    printf '\n== %s: %s at %s ranks, CPUDIST_TRANSPORT=%s\n' "$sanitizer" "$*" "$ranks" "${CPUDIST_TRANSPORT:-}"
    timeout 900 mpirun -n "$ranks" -env LD_PRELOAD "$runtime" python "tests/backends/ccl/checks/$1" "${@:2}"
}

[ $# -gt 0 ] || set -- address thread
for sanitizer in "$@"; do
    case $sanitizer in
        address) library=libasan.so ;;
        thread) library=libtsan.so ;;
        *)
            echo "sanitize.sh: there is no sanitizer '$sanitizer'; say address or thread" >&2
            exit 2
            ;;
    esac
    # Before Python loads anything, and the C++ library with it: exceptions are watched from the start or not at all.
    runtime=$("${CXX:-g++}" -print-file-name="$library"):$("${CXX:-g++}" -print-file-name=libstdc++.so)
    export CPUDIST_CACHE=$PWD/build/sanitize-$sanitizer PYTHONWARNINGS=ignore PYTHONMALLOC=malloc
    export CPUDIST_TEST_ROOMY=1 # their memory is not ours
    # Python and its libraries keep memory until the process ends, which is no leak of ours.
    export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1
    TSAN_OPTIONS=ignore_noninstrumented_modules=1:halt_on_error=1:report_signal_unsafe=0
    export TSAN_OPTIONS=$TSAN_OPTIONS:suppressions=$PWD/scripts/thread_sanitizer.supp
    build "$sanitizer"
    for CPUDIST_TRANSPORT in "" oneccl mpi-alone; do
        export CPUDIST_TRANSPORT
        check 2 collectives.py 10
        for CPUDIST_TEST_PROGRESS in naps polls; do
            export CPUDIST_TEST_PROGRESS
            check 2 programs.py edges.py -- progress.py
        done
    done
    CPUDIST_TRANSPORT= check 2 threads.py
    # Where a future across machines is completed by the engine's thread, which naps meanwhile.
    export CPUDIST_TRANSPORT= CPUDIST_TEST_PROGRESS=naps
    CPUDIST_TEST_HOSTS=2 check 4 programs.py collectives.py 5
    for ranks in 2 4; do
        CPUDIST_TEST_HOSTS=2 check "$ranks" programs.py edges.py -- progress.py
    done
done
unset CPUDIST_TRANSPORT CPUDIST_TEST_PROGRESS

printf '\n== shared memory by itself, under both\n'
CPUDIST_TEST_SANITIZERS=1 python -m pytest -q tests/backends/ccl/shared_memory -k sanitizer
echo "no sanitizer has found anything"
