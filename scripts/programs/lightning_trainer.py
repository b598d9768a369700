"""A classifier under Lightning's Trainer."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        print(f"loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


x = torch.randn(256, 16, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8)
quiet = {"enable_progress_bar": False, "logger": False, "enable_checkpointing": False, "enable_model_summary": False}
pl.Trainer(accelerator="cpu", devices=2, max_epochs=2, **quiet).fit(Classifier(), loader)
