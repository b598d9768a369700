#!/usr/bin/env bash
# Fresh machine -> environment and the whole test suite. Arguments go to pytest: scripts/test.sh -k launchers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

check_machine
make_environment ccl,plot,dev
build_backend
say "style and types"
ruff check .
ruff format --check .
mypy
say "tests"
exec timeout 2400 python -m pytest "$@"
