"""One program over a mesh of devices: the runtime cuts tensors and computations to pieces (SPMD).

- `mesh.py`: `--mesh`, from text to the runtime's mesh.
- `table.py`, `tables.py`: how parameters lie on it, by patterns of their names; those of a file, and ours.
- `specs.py`: partition specs, and the checks that the runtime does not make.
- `sharding.py`: one job's mesh and table, applied to its model and its batches.
- `picture.py`: `--show-sharding`.
"""
