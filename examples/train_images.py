"""Image classification on any backend, in the manner of PyTorch/XLA's own examples: DDP, or one program over a mesh.

    cpudist-train --backend xla examples/train_images.py --fake_data
    mpirun -n 2 cpudist-train --backend xla examples/train_images.py --fake_data
    cpudist-train --backend xla --mesh data=2,model=2 examples/train_images.py --fake_data
    cpudist-train --backend xla examples/train_images.py --model resnet50 --fake_data --batch_size 8 --steps 3

Without --fake_data the images are scikit-learn's handwritten digits. torchvision is not needed.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import cpudist


class Bottleneck(nn.Module):
    """A block of ResNet-50 (He et al., 2016): 1 x 1, 3 x 3 and 1 x 1 convolutions around a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
        )
        changes = stride > 1 or before != after
        shortcut = (nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)) if changes else ()
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet50(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(before, width, stride=2 if block == 0 and width > 64 else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def mnist(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
    )


MODELS = {"mnist": (mnist, 1, 28), "resnet50": (resnet50, 3, 224)}


def images(arguments: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """All images and their labels, alike on every rank."""
    _, channels, size = MODELS[arguments.model]
    size = arguments.image_size or size
    if arguments.fake_data:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, 10, (4 * arguments.batch_size,), generator=generator)
        # Brighter for higher labels: noise alone could not be learnt.
        noise = torch.randn(len(labels), channels, size, size, generator=generator)
        return noise + labels.view(-1, 1, 1, 1) / 5, labels
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return nn.functional.interpolate(pixels, size=size).repeat(1, channels, 1, 1), torch.tensor(digits.target)


def report(step: int, loss: float, rate: float, global_rate: float) -> None:
    """A line as PyTorch/XLA's examples have it; rates in images per second, of this step and since the first."""
    numbers = f"Step={step} Loss={loss:.5f} Rate={rate:.2f} GlobalRate={global_rate:.2f}"
    print(f"| Training {numbers} Time={time.strftime('%H:%M:%S')}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an image classifier and print step, loss and rate.")
    parser.add_argument("--model", choices=MODELS, default="mnist")
    parser.add_argument("--fake_data", action="store_true", help="noise in the place of images")
    parser.add_argument("--image_size", type=int, help="pixels a side (default: as the model is known for)")
    parser.add_argument("--batch_size", type=int, default=64, help="images of each step, over all ranks")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.02)
    arguments = parser.parse_args()
    world = cpudist.init()

    torch.manual_seed(0)
    make, channels, _ = MODELS[arguments.model]
    model = cpudist.wrap(make(channels, 10).to(world.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    pixels, labels = images(arguments)

    began = last = time.perf_counter()
    for step in range(arguments.steps):
        chosen = torch.arange(step * arguments.batch_size, (step + 1) * arguments.batch_size) % len(labels)
        mine = chosen[world.rank :: world.size]
        outputs = model(pixels[mine].to(world.device))
        loss = nn.functional.cross_entropy(outputs, labels[mine].to(world.device))
        optimizer.zero_grad()
        loss.backward()
        cpudist.step(optimizer)

        mean = cpudist.mean(loss).item()
        now = time.perf_counter()
        rate, global_rate = arguments.batch_size / (now - last), arguments.batch_size * (step + 1) / (now - began)
        last = now
        if world.rank == 0:
            report(step, mean, rate, global_rate)
    cpudist.shutdown()


if __name__ == "__main__":
    main()
