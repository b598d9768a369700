# Cells as accelerate's notebook tutorial has them: pictures, batches that are dictionaries, a frozen encoder, workers
# that load data, "fp16", a schedule per step, metrics gathered. And a plot.

# %%
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from matplotlib import pyplot
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from cpudist import notebook_launcher

# %%
colors = torch.tensor([[200, 120, 60], [60, 90, 180]]) / 255  # of beagles and Maine Coons


class Pets(Dataset):
    def __init__(self, chosen):
        self.chosen = chosen

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, index):
        label = int(self.chosen[index] % 2)
        return {"image": colors[label][:, None, None] + 0.2 * torch.rand(3, 16, 16), "label": label}


def loaders(batch_size):
    order = np.random.permutation(80)
    return (
        DataLoader(Pets(order[:64]), shuffle=True, batch_size=batch_size, num_workers=4),
        DataLoader(Pets(order[64:]), shuffle=False, batch_size=2 * batch_size, num_workers=4),
    )


# %%
def training_loop(mixed_precision="fp16", seed=42, batch_size=8):
    set_seed(seed)
    accelerator = Accelerator(mixed_precision=mixed_precision)
    train_loader, eval_loader = loaders(batch_size)
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.AdaptiveAvgPool2d(1))
    model = torch.nn.Sequential(encoder, torch.nn.Flatten(), torch.nn.Linear(8, len(colors)))
    for parameter in encoder.parameters():
        parameter.requires_grad = False
    mean = torch.tensor([0.5, 0.5, 0.5]).to(accelerator.device)[None, :, None, None]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / 25)
    schedule = OneCycleLR(optimizer, max_lr=0.1, epochs=2, steps_per_epoch=len(train_loader))
    model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, schedule
    )
    losses = []
    for epoch in range(2):
        model.train()
        for batch in train_loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"] - mean), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        right = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                found = model(batch["image"] - mean).argmax(dim=-1)
            found, labels = accelerator.gather_for_metrics((found, batch["label"]))
            right, seen = right + (found == labels).sum().item(), seen + len(labels)
        accelerator.print(f"epoch {epoch}: {right} of {seen} in {accelerator.mixed_precision}")
    pyplot.plot(losses)
    pyplot.show()


# %%
notebook_launcher(training_loop, ("fp16", 42, 8), num_processes=2)
