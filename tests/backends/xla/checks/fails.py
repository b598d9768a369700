"""One rank of a job goes wrong, WAY: raises, dies (killed) or hangs (never comes to the reduction)."""

import os
import signal
import sys
import threading

import torch

import cpudist

# The timeout also bounds the start: on a busy machine one rank imports torch_xla many seconds longer than the other.
timeout = 20 if sys.argv[1] == "hangs" else 100
world = cpudist.init("xla", timeout=timeout)
model = cpudist.wrap(torch.nn.Linear(4, 4).to(world.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(100_000):
    if number == 3 and world.rank == 1:
        if sys.argv[1] == "raises":
            raise ValueError("a bad batch")
        if sys.argv[1] == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()
    model(torch.ones(2, 4).to(world.device)).sum().backward()
    cpudist.step(optimizer)
print("finished")
