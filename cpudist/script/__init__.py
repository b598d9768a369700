"""The user's program: a script, a module or an installed command, with its arguments and its frames.

- `target.py`: find the program, and run it as plain Python does.
- `long_arguments.py`: pass a long command line to the ranks.
- `frames.py`: which frames of a traceback or a stack belong to the program.

It must not import torch or MPI.
"""
