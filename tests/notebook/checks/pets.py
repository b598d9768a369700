# Cells as accelerate's notebook tutorial has them: batches that are dictionaries, workers that load data, "fp16", a
# frozen part, metrics gathered. And a plot.

# %%
import torch
from accelerate import Accelerator
from matplotlib import pyplot
from torch.utils.data import DataLoader, Dataset

from cpudist import notebook_launcher

# %%
colors = torch.tensor([[200, 120, 60], [60, 90, 180]]) / 255  # of beagles and Maine Coons


class Pets(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        label = index % 2
        return {"image": colors[label][:, None, None] + 0.2 * torch.rand(3, 16, 16), "label": label}


# %%
def training_loop(mixed_precision="fp16", batch_size=8):
    torch.manual_seed(42)
    accelerator = Accelerator(mixed_precision=mixed_precision)
    encoder = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1)).requires_grad_(False)
    model = torch.nn.Sequential(encoder, torch.nn.Flatten(), torch.nn.Linear(8, len(colors)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    loader = DataLoader(Pets(), shuffle=True, batch_size=batch_size, num_workers=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for epoch in range(4):
        right = seen = 0
        for batch in loader:
            found = model(batch["image"])
            loss = torch.nn.functional.cross_entropy(found, batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            found, labels = accelerator.gather_for_metrics((found.argmax(dim=-1), batch["label"]))
            right, seen = right + (found == labels).sum().item(), seen + len(labels)
        accelerator.print(f"epoch {epoch}: {right} of {seen} in {accelerator.mixed_precision}")
    pyplot.plot(losses)
    pyplot.show()


# %%
notebook_launcher(training_loop, ("fp16", 8), num_processes=2)
