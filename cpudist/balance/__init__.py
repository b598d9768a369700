"""Divide the samples of a step among ranks of unequal speed, so that the model is the same as with equal shares.

- `division.py`: whole shares of a number of samples.
- `agreed.py`: the shares that all ranks have agreed on, and the weights of unequal batches.
- `sampler.py`: the batches of a rank, for loops of one's own; Trainer's are in huggingface/uneven_shares.py.
- `balancer.py`: chooses the shares on rank 0, from the paces of all ranks.

It must not import jobs, observers, optimization, transformers, programs or command lines.
"""
