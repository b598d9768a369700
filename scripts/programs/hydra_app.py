"""A linear model whose width is an option of Hydra's."""

import hydra
import torch
from hydra.core.config_store import ConfigStore
from loop import train
from omegaconf import DictConfig

ConfigStore.instance().store("config", {"model": {"width": 8}})


@hydra.main(config_name="config", version_base=None)
def main(config: DictConfig) -> None:
    torch.manual_seed(0)
    width = config.model.width
    model = torch.nn.Linear(width, 1)
    train(model, lambda: torch.randn(8, width), lambda model, x: (model(x) - x.sum(1, keepdim=True)).square().mean())


main()
