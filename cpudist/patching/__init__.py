"""Change the environment and other packages while a job runs, and undo the changes at its end.

This package must not import torch, MPI or transformers.
"""
