"""A small Llama whose layers transformers divides over the ranks."""

import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

if "RANK" not in os.environ:  # before the two jobs, one process writes the model and computes the same losses
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
model = LlamaForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto" if "RANK" in os.environ else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1)
for _ in range(6):
    tokens = torch.randint(512, (4, 64))
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
