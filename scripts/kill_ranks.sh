#!/usr/bin/env bash
# Kills a rank with -9 at a random moment, again and again: scripts/kill_ranks.sh [TIMES], 50 if not given.
# In the environment that is active. Fails if a process, or anything but Intel MPI's in /dev/shm, stays behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
CPUDIST_TEST_KILLS=${1:-50} exec python -m pytest -q tests/backends/ccl/test_killed_ranks.py
