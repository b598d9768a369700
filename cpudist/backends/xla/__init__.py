"""The xla backend: PyTorch/XLA's PJRT runtime on CPUs, GPUs and TPUs.

- `xla_backend.py`: the backend, its options and its hooks. `xla_devices.py`: its devices. `pjrt.py`: chooses them.
- `program.py`: the runtime during one job. `joining.py`: connects the ranks.
- `xla_group.py`, `transfers.py`: the process group, and transfers of tensors to and from the host.
- `patches.py`: patches of torch_xla, torch and accelerate.
- `mesh.py`, `partition.py`, `sharding.py`: one program over a mesh of devices (SPMD).

It is registered through the entry point ``cpudist.backends``, like backends of other packages. Only this folder imports
torch_xla, and only when a job starts on it. torch_xla ends with release 2.9; see docs/xla.md.
"""
