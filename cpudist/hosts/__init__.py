"""`cpudist launch`: start a job on its hosts, restart it after a failure, and leave no process behind.

It runs before any rank does and must not import torch, MPI, transformers, backends, jobs, optimization or programs.
"""
