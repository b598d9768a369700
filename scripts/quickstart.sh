#!/usr/bin/env bash
# From a fresh Debian or Ubuntu machine to a two-rank training job on oneCCL, in one command:
# makes .venv, compiles the ccl backend, trains a small language model on the source text of Python's own standard
# library, and leaves the run record and the loss curve in runs/quickstart/.
#
# Running it again keeps the environment and the build, and trains anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. scripts/environment.sh

readonly RUN=runs/quickstart

# Standard library modules, in an order that is the same everywhere; every fortieth is held out to evaluate on.
library_files() {
    python - "$1" <<'PYTHON'
import pathlib, sys, sysconfig
files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
held_out = files[::40]
print(*(held_out if sys.argv[1] == "held-out" else sorted(set(files) - set(held_out))), sep="\n")
PYTHON
}

train() {
    local -a train_files held_out
    mapfile -t train_files < <(library_files train)
    mapfile -t held_out < <(library_files held-out)
    say "training: two ranks on ccl, on ${#train_files[@]} modules of Python's standard library (about three minutes)"
    timeout 1200 mpirun -n 2 cpudist-train --backend ccl --record "$RUN/cpudist.json" examples/language_model.py \
        --train_files "${train_files[@]}" --eval_files "${held_out[@]}" \
        --vocab_size 2048 --block_size 128 --config_overrides n_layer=2,n_embd=256,n_head=4 \
        --max_steps 500 --per_device_train_batch_size 4 \
        --learning_rate 1.5e-3 --lr_scheduler_type cosine --warmup_steps 20 --adam_beta2 0.95 \
        --eval_on_start --eval_strategy steps --eval_steps 125 \
        --logging_steps 25 --disable_tqdm true --save_strategy no --output_dir "$RUN" &
    # bash ends at a signal without waiting for what it has started.
    trap "kill $! && wait $! || exit 130" INT
    trap "kill $! && wait $! || exit 143" HUP TERM
    wait $!
}

check_machine
make_environment build,hf,plot "${NEWEST[@]}"
build_backend
train
say "done: $RUN/cpudist.json"
python scripts/loss_curve.py "$RUN"
