#!/usr/bin/env bash
# Kills a training job at random moments of saving a checkpoint, resumes it, and prints what each moment left behind:
#   scripts/kill_while_saving.sh [--moments 50] [--seed 0]
# About six seconds for each moment; docs/reliability.md has its last output.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
make_environment ccl,plot,dev "${NEWEST[@]}"
build_backend
PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" exec python tests/huggingface/kill_while_saving.py "$@"
