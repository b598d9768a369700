#!/usr/bin/env bash
# Fresh machine -> environment and the test suite:
#   scripts/test.sh [newest|torch2.8|torch2.15|all] [ARGUMENTS OF PYTEST]
#   scripts/test.sh sanitize [address|thread]    the ccl backend's checks under sanitizers, see sanitize.sh
# e.g. scripts/test.sh -k environments. The newest is the default: the whole suite, with style, types and imports. In the
# other environments runs what depends on the versions of torch and of Hugging Face's libraries. all: newest and torch2.8.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

# What is said between hosts does not.
readonly DEPENDS_ON_VERSIONS=(
    tests/backends/{test_calls,test_shard_optimizer}.py tests/backends/ccl/test_{ccl,hooks}.py tests/backends/xla
    tests/huggingface tests/job/test_job.py tests/notebook/test_notebook_xla.py tests/optimization
    tests/training/test_target.py tests/training/recipes/test_{clm,qa,recipe_script,recipes}.py
    -k "not across_hosts"
)

check_source() {
    say "style, types and imports"
    ruff check .
    ruff format --check .
    find cpudist tests -name '*.[ch]pp' -exec clang-format --dry-run --Werror {} +
    mypy
    lint-imports --no-logo
}

run_tests() {
    build_backend
    say "tests"
    timeout 3300 python -m pytest "$@"
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
        run_tests "${DEPENDS_ON_VERSIONS[@]}" "${@:2}"
        ;;
    torch2.15)
        make_environment ccl,plot,test "${TORCH_2_15[@]}"
        run_tests "${DEPENDS_ON_VERSIONS[@]}" "${@:2}"
        ;;
    sanitize)
        make_environment ccl,plot,dev "${NEWEST[@]}"
        scripts/sanitize.sh "${@:2}"
        ;;
    *)
        [ "${1:-}" != newest ] || shift
        make_environment ccl,plot,dev "${NEWEST[@]}"
        check_source
        run_tests "$@"
        ;;
esac
