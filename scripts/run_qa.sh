#!/usr/bin/env bash
# Runs transformers' own run_qa.py by the guides' command and by that of transformers' page today.
# scripts/run_qa.sh FOLDER MODEL TRAIN.json VALIDATION.json OUTPUT
# FOLDER: examples/pytorch/question-answering of transformers at the installed version; run_qa.py needs `pip install evaluate`,
# which fetches the metric squad_v2, unless there is a folder squad_v2 here that has it. The JSON files have one list "data" of
# questions, each with its context.
set -euo pipefail

folder=$1 model=$2 train=$3 validation=$4 output=$5
words=(--model_name_or_path "$model" --train_file "$train" --validation_file "$validation" --version_2_with_negative
    --do_train --do_eval --max_seq_length 128 --doc_stride 64 --per_device_train_batch_size 4 --max_train_samples 480
    --max_eval_samples 100 --learning_rate 5e-4 --num_train_epochs 1 --logging_steps 10 --save_strategy no --report_to none)
hosts=$(mktemp)
trap 'rm "$hosts"' EXIT
echo localhost >"$hosts"

timeout 600 mpirun -f "$hosts" -n 4 -ppn 2 -genv OMP_NUM_THREADS=23 python3 "$folder/run_qa.py" "${words[@]}" \
    --output_dir "$output/then" --no_cuda --ddp_backend ccl --use_ipex --bf16
timeout 600 mpirun -n 2 cpudist-train "$folder/run_qa.py" "${words[@]}" --output_dir "$output/today" --use_cpu --bf16
