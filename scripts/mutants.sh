#!/usr/bin/env bash
# Shows what the tests of a module do not notice: changes one expression at a time (mutmut) and runs the tests.
#   scripts/mutants.sh store/values.py           all mutants of a module of cpudist/, in minutes
#   scripts/mutants.sh --sample 80 store         80 of a folder, always the same
#   scripts/mutants.sh --help
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

check_machine
make_environment plot,dev "${NEWEST[@]}"
build_backend  # for tests of jobs
command -v mutmut >/dev/null || python -m pip install --quiet 'mutmut==3.8.1'
exec timeout 7200 nice -n 10 python scripts/mutants.py "$@"
