"""A script as people write them who set torch's variables from mpirun's: no import of cpudist anywhere."""

import os
import sys
import time
from datetime import timedelta

import plain
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

plain.set_variables()
for turn in range(3):
    options = {"pg_options": Backend.Options("ccl", timedelta(seconds=60))} if turn == 0 else {}
    dist.init_process_group("ccl", timeout=timedelta(seconds=60), **options)
    rank = dist.get_rank()
    if rank < 2:  # the keys of the earlier turns' group are still in the store
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.all_reduce(torch.ones(1), group=pair)
    if turn < 2:
        dist.destroy_process_group()
        time.sleep(0.2 * rank)  # ranks come at different times
tensor = torch.tensor(float(rank))
dist.all_reduce(tensor)
print(f"sum {tensor.item()} on {dist.get_backend()} over {os.environ['CCL_ATL_TRANSPORT']}")
# A receive from any source listens to peers that never send.
if rank == 0:
    assert dist.recv(torch.zeros(3)) == 1
elif rank == 1:
    dist.send(torch.ones(3), 0)
# A model in DDP holds the group to the very end, also when the group has been destroyed.
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
dist.all_reduce(torch.ones(3_000_000), async_op=True)  # nobody waits for it; every rank must finish it all the same
if sys.argv[1] == "destroy":
    dist.destroy_process_group()
