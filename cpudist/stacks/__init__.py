"""Where every rank of a running job is, on request: `answer.py` in a rank, `ask.py` in `cpudist stacks`.

A rank listens on a socket that only this machine sees and that has no file, so nothing is left of it, however the rank
ends. Whether or not that thread can answer, a signal makes the process itself write its stacks, in C.

It must not know torch, MPI, environments or jobs.
"""
