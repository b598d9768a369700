"""Change the environment and other packages while a job runs, and undo the changes at its end.

- `undo.py`: `Changes`, a stack of changes that can be undone.
- `patch.py`: `Patch`, a part of another package that is replaced, with the reason. Tables are beside their functions.
- `on_import.py`: act on a module once the script has imported it.

It must not import torch, MPI or transformers.
"""
