"""torchrec's embedding tables, whose rows are divided over the ranks."""

import torch
import torch.distributed as dist
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan

dist.init_process_group("gloo")
torch.manual_seed(0)
FEATURES = ("user", "item")
tables = [EmbeddingBagConfig(num_embeddings=64, embedding_dim=16, name=name, feature_names=[name]) for name in FEATURES]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.out = EmbeddingBagCollection(tables, device=torch.device("cpu")), torch.nn.Linear(32, 1)

    def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
        return self.out(self.embeddings(features).values())


model = Model()
sharder = EmbeddingBagCollectionSharder()
rows = construct_module_sharding_plan(
    model.embeddings,
    {name: row_wise() for name in FEATURES},
    sharder,
    dist.get_world_size(),
    device_type="cpu",
)
sharded = DistributedModelParallel(
    model, device=torch.device("cpu"), plan=ShardingPlan({"embeddings": rows}), sharders=[sharder]
)
optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    features = KeyedJaggedTensor.from_lengths_sync(list(FEATURES), torch.randint(64, (32,)), torch.full((16,), 2))
    loss = (sharded(features) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
