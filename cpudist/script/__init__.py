"""The user's program: a script, a module or an installed command, with its arguments and its frames.

This package must not import torch or MPI.
"""
