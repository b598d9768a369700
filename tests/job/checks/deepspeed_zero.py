"""Train with DeepSpeed, as a script that knows nothing of cpudist; print the losses of ZeRO 1, 2 and 3."""

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # DeepSpeed would compile it, for minutes
deepspeed.init_distributed()
rank, backend = torch.distributed.get_rank(), torch.distributed.get_backend()
for stage in (1, 2, 3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage}, "optimizer": adam}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    torch.manual_seed(rank)
    losses = []
    for _ in range(5):
        loss = engine(torch.randn(4, 64)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    print(f"{backend}: rank {rank}, ZeRO {stage}: {losses}", flush=True)
torch.distributed.barrier()
