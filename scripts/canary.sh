#!/usr/bin/env bash
# The newest torch, Hugging Face libraries, oneCCL and Intel MPI that pip's index has, also above the bounds in pyproject.toml, and
# the tests that their versions touch. Prints the table of CONTRIBUTING.md, under "In step"; fails if a test fails.
#   scripts/canary.sh            40 minutes and 7 GB: PyPI's torch is a CUDA build
#   scripts/canary.sh PIN...     with these versions instead, such as a nightly: see CONTRIBUTING.md
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly FOLLOWED=(torch transformers accelerate datasets trl peft oneccl-cpu-devel impi-rt)

# version_of PACKAGE: the installed version, and the newest of the index where that is another one.
version_of() {
    local installed newest
    installed=$(python -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$1")
    newest=$(python -m pip index versions "$1" 2>/dev/null | sed -n '1s/.*(\(.*\))/\1/p')
    printf '%s %s' "$1" "$installed"
    if [ "${installed%+*}" != "${newest%+*}" ]; then printf ' (index: %s)' "$newest"; fi
}

# tried PACKAGES ARGUMENTS OF PYTEST...: runs these tests, and adds a row to the table.
tried() {
    local package versions=() log
    log=$(mktemp)
    for package in $1; do versions+=("$(version_of "$package")"); done
    say "${versions[*]}"
    timeout 900 python -m pytest -q --numprocesses 2 --dist loadfile "${@:2}" | tee "$log" || failed=1
    printf -v rows '%s| %s | %s |\n' "$rows" "$(IFS=,; echo "${versions[*]}" | sed 's/,/, /g')" \
        "$(tail -n 1 "$log" | sed 's/ in [0-9].*//; s/=* *//')"
    rm "$log"
}

check_machine
make_environment plot,test .venv-canary
say "environment: the newest of ${FOLLOWED[*]} $*"
timeout --foreground 1200 python -m pip install --quiet --disable-pip-version-check --upgrade "${FOLLOWED[@]}" "$@"
build_backend
failed=0 rows=
tried "oneccl-cpu-devel impi-rt" -m versions tests/backends/ccl
tried "torch" -m versions tests/backends tests/bench tests/checkpoints tests/job tests/observability tests/optimization tests/supervision --ignore tests/backends/ccl
tried "transformers accelerate datasets" -m versions tests/huggingface tests/notebook tests/examples
tried "trl peft" tests/examples -k "adapters or trl"
say "$(date -u +%F), Python $(python -c 'import platform; print(platform.python_version())')"
printf '| versions | tests |\n|---|---|\n%s' "$rows"
exit "$failed"
