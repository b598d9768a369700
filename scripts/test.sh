#!/usr/bin/env bash
# Fresh machine -> environment and the whole test suite, in one environment or in both:
#   scripts/test.sh [newest|torch2.8|all] [ARGUMENTS OF PYTEST]
#   scripts/test.sh sanitize [address|thread]    the ccl backend's checks under sanitizers, see sanitize.sh
# e.g. scripts/test.sh -k launchers. The newest is the default, and the one in which style and types are checked.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

check_style_and_types() {
    say "style and types"
    ruff check .
    ruff format --check .
    mypy
}

run_tests() {
    build_backend
    say "tests"
    timeout 1800 python -m pytest "$@"
}

# Both, whatever becomes of the first: one failing environment says nothing about the other.
run_in_both() {
    local environment results=() failed=0
    for environment in newest torch2.8; do
        say "in the environment $environment"
        if scripts/test.sh "$environment" "$@"; then
            results+=("$environment: passed")
        else
            results+=("$environment: FAILED")
            failed=1
        fi
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
    torch2.8)
        make_environment ccl,plot,test "${TORCH_2_8[@]}"
        run_tests "${@:2}"
        ;;
    sanitize)
        make_environment ccl,plot,dev "${NEWEST[@]}"
        scripts/sanitize.sh "${@:2}"
        ;;
    *)
        [ "${1:-}" != newest ] || shift
        make_environment ccl,plot,dev "${NEWEST[@]}"
        check_style_and_types
        run_tests "$@"
        ;;
esac
