"""torch_geometric's graph convolutions on batches of small graphs."""

import torch
from loop import train
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = GCNConv(8, 32), GCNConv(32, 32), torch.nn.Linear(32, 1)

    def forward(self, graph: Data) -> torch.Tensor:
        x = self.second(self.first(graph.x, graph.edge_index).relu(), graph.edge_index).relu()
        return self.out(global_mean_pool(x, graph.batch))


def batch() -> Batch:
    graphs = [Data(x=torch.randn(10, 8), edge_index=torch.randint(10, (2, 30))) for _ in range(8)]
    return Batch.from_data_list(graphs)


torch.manual_seed(0)
train(Net(), batch, lambda model, graphs: (model(graphs) - 1).square().mean())
