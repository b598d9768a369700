#!/usr/bin/env bash
# Fresh machine -> environment and the test suite:
#   scripts/test.sh [newest|torch2.8|torch2.15|all] [ARGUMENTS OF PYTEST]
#   scripts/test.sh sanitize [address|thread]    the ccl backend's checks under sanitizers, see sanitize.sh
# newest is the default. Without arguments it runs the whole suite and checks style, types and imports first. The other
# environments run the tests marked `versions`. all: newest, then torch2.8.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

# A test run starts about a thousand Pythons. Without cached bytecode each of them would compile cpudist again.
unset PYTHONDONTWRITEBYTECODE

prepare() {
    case $1 in
        newest) make_environment ccl,plot,dev "${NEWEST[@]}" ;;
        torch2.8) make_environment ccl,plot,test "${TORCH_2_8[@]}" ;;
        torch2.15) make_environment ccl,plot,test "${TORCH_2_15[@]}" ;;
    esac
    build_backend
}

check_source() {
    say "style, types and imports"
    ruff check .
    ruff format --check .
    find cpudist tests -name '*.[ch]pp' -exec clang-format --dry-run --Werror {} +
    mypy
    lint-imports --no-logo
}

run_tests() {
    say "tests"
    timeout 3300 python -m pytest "$@"
}

# The second environment is made beside the first one and its style checks, because pip and the compiler use one core each.
# The tests take turns: their time limits are for a machine that does nothing else. The second environment's run even if
# the first fails.
run_in_both() {
    local environment results=() failed=0
    prepare torch2.8 & # what fails there is tried again below, and reported
    for environment in newest torch2.8; do
        say "in the environment $environment"
        if scripts/test.sh "$environment" "$@"; then
            results+=("$environment: passed")
        else
            results+=("$environment: FAILED")
            failed=1
        fi
        wait
    done
    say "results"
    printf '%s\n' "${results[@]}"
    return "$failed"
}

check_machine
case ${1:-} in
    all)
        run_in_both "${@:2}"
        ;;
    torch2.8 | torch2.15)
        prepare "$1"
        run_tests -m versions "${@:2}"
        ;;
    sanitize)
        prepare newest
        scripts/sanitize.sh "${@:2}"
        ;;
    *)
        [ "${1:-}" != newest ] || shift
        prepare newest
        [ $# -gt 0 ] || check_source
        run_tests "$@"
        ;;
esac
