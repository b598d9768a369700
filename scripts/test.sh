#!/usr/bin/env bash
# Fresh machine -> environment and the whole test suite. Arguments go to pytest: scripts/test.sh -k launchers
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

make_environment ccl,plot,dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/cpudist build
exec timeout 2400 .venv/bin/python -m pytest "$@"
