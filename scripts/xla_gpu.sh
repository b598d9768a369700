#!/usr/bin/env bash
# scripts/xla_gpu.sh: trains on one GPU by torch_xla (pip install '.[xla-cuda,hf]') and on the CPU of this host, and
# compares the losses; two minutes. Where there is no GPU it ends with the reason and status 0.
set -euo pipefail
cd "$(dirname "$0")/.."
gpu=(--backend xla --device cuda)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# last FILE: its last line that is not cpudist's.
last() { grep -av '^cpudist' "$1" | tail -n 1 | tr -cd '[:print:]' | cut -c 1-90; }

# stage SECONDS NAME COMMAND...: runs one stage within SECONDS; its output goes to $work/NAME.
stage() {
    local seconds=$1 name=$2 start=$SECONDS status=0
    shift 2
    timeout --kill-after=5 "$seconds" "$@" >"$work/$name" 2>&1 || status=$?
    printf '%-14s %3s s  %s\n' "$name" $((SECONDS - start)) "$(last "$work/$name")"
    [ $status = 0 ] || { touch "$work/failed" && tail -n 30 "$work/$name" | sed 's/^/    /'; }
}

# trainings NAME OPTIONS...: the jobs that are compared, one after the other, with these options.
trainings() {
    local on=$1 job=(cpudist-train --record "$work/record-$1.json" --no-pin "${@:2}")
    for dtype in float32 bfloat16; do stage 60 "$on-$dtype" "${job[@]}" scripts/gpu_check.py steps "$dtype"; done
    stage 60 "$on-loop" "${job[@]}" examples/one_program.py "$work/$on-saved"
    if [ "$trainer" = yes ]; then
        stage 60 "$on-trainer" "${job[@]}" examples/language_model.py --train_files README.md --vocab_size 400 \
            --block_size 32 --config_overrides n_layer=1,n_embd=32,n_head=2 --max_steps 10 --learning_rate 1e-2 \
            --logging_steps 1 --report_to none --disable_tqdm true --output_dir "$work/$on-trained"
    fi
}
compare() { stage 20 "$1" python scripts/gpu_check.py compare "$2" "$work/gpu-$1" "$work/cpu-$1"; }

if ! timeout 60 cpudist-train "${gpu[@]}" scripts/gpu_check.py product >"$work/product" 2>&1; then
    grep -q 'cannot be used on rank 0' "$work/product" || { cat "$work/product" && exit 1; }
    echo "no GPU: $(sed -n 's/.*cannot be used on rank 0: //p' "$work/product")"
    exit 0
fi
timeout 20 nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader || true
last "$work/product"
trainer=$(python -c 'import datasets, transformers' 2>/dev/null && echo yes || echo no)
trainings cpu --backend gloo &
trainings gpu "${gpu[@]}"
wait
compare float32 1e-4
compare bfloat16 5e-2
compare loop 1e-4
[ "$trainer" = no ] || compare trainer 1e-3
stage 60 load cpudist-train --record "$work/record.json" scripts/gpu_check.py load "$work/gpu-saved" "$work/cpu-saved"
[ ! -e "$work/failed" ]
