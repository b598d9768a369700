"""Change the environment and other packages while a job runs, and undo the changes at its end.

- `undo.py`: `Changes`, a stack of changes that can be undone.
- `on_import.py`: act on a module once the script has imported it.

It must not import torch, MPI or transformers.
"""
