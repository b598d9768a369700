"""skorch's classifier with accelerate."""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from skorch.hf import AccelerateMixin


class Net(AccelerateMixin, NeuralNetClassifier):
    pass


x, y = load_digits(return_X_y=True)
torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10), torch.nn.LogSoftmax(-1))
options = {"max_epochs": 3, "lr": 0.1, "iterator_train__shuffle": False, "verbose": 0}
# accelerate gives every module to DDP on CPUs, also a loss without parameters, which DDP refuses: a function is none.
net = Net(module, criterion=lambda: torch.nn.functional.nll_loss, accelerator=Accelerator(cpu=True), **options)
net.fit(x[:512].astype("float32") / 16, y[:512])
for loss in net.history[:, "train_loss"]:
    print(f"loss {loss:.6f}", flush=True)
