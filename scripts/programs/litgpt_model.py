"""litgpt's GPT under Lightning's Fabric."""

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
