"""A plain training loop on several ranks, in bfloat16: handwritten digits, a small convolutional net, no Trainer.

    pip install scikit-learn
    mpirun -n 2 python examples/train_digits.py out

Every rank takes its share of each epoch's shuffled digits; gradients are averaged by the backend. After
each epoch a checkpoint is saved in the folder `out`; started again, the script goes on from the newest one.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cpudist


def main() -> None:
    world = cpudist.init()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 4 * 4, 10),
    )
    model = model.to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = cpudist.optimize(model, optimizer, dtype=torch.bfloat16)
    model = cpudist.wrap(model)
    sampler = DistributedSampler(train, world.size, world.rank, shuffle=True)
    loader = DataLoader(train, batch_size=32, sampler=sampler)

    checkpoints = cpudist.Checkpoints(sys.argv[1])
    for epoch in range(checkpoints.restore(model=model, optimizer=optimizer), 20):
        sampler.set_epoch(epoch)
        for batch, target in cpudist.batches(loader):
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            cpudist.step(optimizer)
            optimizer.zero_grad()
        mean = cpudist.mean(loss)
        checkpoints.save(epoch + 1, model=model, optimizer=optimizer)
        if world.rank == 0:
            print(f"epoch {epoch + 1}: loss {mean:.3f}")

    # Every rank counts on its own part of the test set, each digit once.
    part = range(world.rank, len(test), world.size)
    batch, target = test[part]
    right = (model(batch.to(world.device)).argmax(1).cpu() == target).sum()
    share = cpudist.mean(right).item() * world.size / len(test)
    if world.rank == 0:
        print(f"{world}: {share:.1%} of {len(test)} digits right")
    cpudist.shutdown()


if __name__ == "__main__":
    main()
