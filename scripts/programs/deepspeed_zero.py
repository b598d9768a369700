"""DeepSpeed's ZeRO 1, 2 and 3, and a pipeline of two stages."""

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch.nn import Linear, ReLU, Sequential

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # docs/programs.md says why
deepspeed.init_distributed()
rank = torch.distributed.get_rank()
ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model = Sequential(Linear(64, 128), ReLU(), Linear(128, 8))
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "optimizer": ADAM}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    torch.manual_seed(rank)
    for _ in range(4):
        loss = engine(torch.randn(4, 64)).square().mean()
        engine.backward(loss)
        engine.step()
        print(f"loss {loss.item():.6f}", flush=True)

torch.manual_seed(0)
stages = PipelineModule([Linear(64, 128), ReLU(), Linear(128, 8)], num_stages=2, loss_fn=torch.nn.MSELoss())
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "optimizer": ADAM}
engine, *_ = deepspeed.initialize(model=stages, model_parameters=stages.parameters(), config=config)
batches = iter(lambda: (torch.randn(4, 64), torch.zeros(4, 8)), None)
for _ in range(4):
    print(f"loss {engine.train_batch(batches).item():.6f}", flush=True)
