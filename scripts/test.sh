#!/usr/bin/env bash
# Fresh machine -> environment and the test suite:
#   scripts/test.sh [newest|torch2.8|torch2.9|torch2.15|all] [ARGUMENTS OF PYTEST]
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
        newest) make_environment plot,dev "${NEWEST[@]}" ;;
        torch2.8) make_environment plot,test "${TORCH_2_8[@]}" ;;
        torch2.9) make_environment plot,test "${TORCH_2_9[@]}" ;;
        torch2.15) make_environment plot,test "${TORCH_2_15[@]}" ;;
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

# The whole suite runs in two processes, a file of tests in one of them: jobs wait much of their time.
run_tests() {
    say "tests"
    [ $# -gt 0 ] || set -- --numprocesses 2 --dist loadfile --no-loadscope-reorder
    exec timeout 4800 python -m pytest "$@"
}

# Makes both environments and runs their tests side by side. What the second one prints is shown at the end.
run_in_both() {
    local log other environment failed=0
    for environment in newest torch2.8; do
        prepare "$environment" &
    done
    wait # with status 0; what could not be installed or compiled is tried again below, and reported
    log=$(mktemp)
    scripts/test.sh torch2.8 "$@" >"$log" 2>&1 &
    other=$!
    trap "kill $other" EXIT
    say "in the environment newest; those of torch2.8 run beside them"
    scripts/test.sh newest "$@" || failed=1
    wait "$other" || failed=1
    trap - EXIT
    say "in the environment torch2.8"
    cat "$log"
    rm "$log"
    return "$failed"
}

check_machine
case ${1:-} in
    all)
        run_in_both "${@:2}"
        ;;
    torch2.8 | torch2.9 | torch2.15)
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
