#!/usr/bin/env bash
# scripts/xla_programs.sh FOLDER: trains with PyTorch/XLA's own programs, unchanged, on the backend xla, and prints a table.
# FOLDER is a checkout of github.com/pytorch/xla at the release that is installed (git checkout v2.8.0). Needs torchvision
# for the same torch, and .venv-torch2.8 active (scripts/test.sh torch2.8 makes it). Compiling takes most of the time.
#
# The programs train on made-up samples without end. Here they get few and small ones: 11 steps of 8 samples, with images of
# 64 x 64 and 16 tokens. The table has the last loss that a program has printed, or how it has ended.
set -euo pipefail
readonly FOLDER=${1:?"give the folder of a checkout of pytorch/xla"}
readonly LIMIT=${LIMIT:-600} # seconds for each program
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/small.py" <<'PYTHON'
"""Runs PROGRAM ARGUMENT … as it is, with few and small samples from torch_xla's SampleGenerator."""

import os
import runpy
import sys

import torch_xla.utils.utils as utils

STEPS, SAMPLES, SIDE, TOKENS = 11, 8, 64, 16
init = utils.SampleGenerator.__init__


def small(tensor):
    if tensor.is_floating_point() and tensor.dim() == 4:  # images
        tensor = tensor[..., :SIDE, :SIDE]
    elif tensor.dim() == 2 and not tensor.is_floating_point():  # tokens
        tensor = tensor[:, :TOKENS]
    return tensor[:SAMPLES].contiguous()


utils.SampleGenerator.__init__ = lambda self, data, sample_count: init(self, tuple(map(small, data)), STEPS)
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
runpy.run_path(sys.argv[0], run_name="__main__")
PYTHON

# train WAY PROGRAM ARGUMENT …: a line of the table: the last loss, or how the program ended.
train() {
    local way=$1 program=$2
    local -a start=(cpudist-train --backend xla)
    shift 2
    case $way in
    "two ranks") start=(mpirun -n 2 "${start[@]}") ;;
    "4 devices") start+=(--mesh fsdp=4) ;;
    esac
    local status=0 result=""
    if [[ ! -e $FOLDER/$program ]]; then
        result="not in this checkout"
    else
        timeout "$LIMIT" "${start[@]}" "$work/small.py" "$FOLDER/$program" "$@" >"$work/output" 2>&1 || status=$?
        if ((status == 124)); then
            result="did not end within $LIMIT s"
        elif ((status)); then
            result="exit status $status: $(grep -aE '^cpudist: |Error' "$work/output" | tail -n 1 || tail -n 1 "$work/output")"
        else
            result=$(grep -aoiE 'loss[=: ]+[0-9.]+' "$work/output" | tail -n 1 | sed -E 's/^loss[=: ]+/loss /i') ||
                result="no loss was printed"
        fi
    fi
    printf '| `%s` | %s | %s |\n' "$program${*:+ $*}" "$way" "$result"
}

mnist=(test/test_train_mp_mnist.py --fake_data --num_epochs 1 --log_steps 1)
imagenet=(test/test_train_mp_imagenet.py --fake_data --model resnet50 --num_epochs 1 --log_steps 1)
git -C "$FOLDER" log -1 --format='pytorch/xla at %H' 2>/dev/null || echo "$FOLDER is not a git checkout"
PJRT_DEVICE=CPU python -c 'import torch, torch_xla; print(f"torch {torch.__version__}, torch_xla {torch_xla.__version__}")'
printf '| program | on | result |\n|---|---|---|\n'
train alone "${mnist[@]}"
train "two ranks" "${mnist[@]}"
train "two ranks" "${mnist[@]}" --ddp --pjrt_distributed
train "4 devices" test/spmd/test_train_spmd_linear_model.py --sharding fsdp --input_dim 1024 # by default 16 times as wide
train "4 devices" examples/fsdp/train_decoder_only_fsdp_v2.py
train alone examples/train_resnet_base.py
train "two ranks" examples/data_parallel/train_resnet_ddp.py
train "two ranks" examples/data_parallel/train_resnet_xla_ddp.py
train "4 devices" examples/data_parallel/train_resnet_spmd_data_parallel.py
train alone "${imagenet[@]}"
train "two ranks" "${imagenet[@]}"
train "two ranks" "${imagenet[@]}" --ddp --pjrt_distributed
