"""neuraloperator's Fourier operator, which has complex parameters."""

import torch
from loop import train
from neuralop.models import FNO

torch.manual_seed(0)
model = FNO(n_modes=(8, 8), hidden_channels=16, in_channels=1, out_channels=1)
train(model, lambda: torch.randn(2, 1, 16, 16), lambda model, x: (model(x) - x.roll(1, -1)).square().mean())
