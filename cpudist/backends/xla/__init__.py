"""The xla backend: PyTorch/XLA's PJRT runtime on CPUs, GPUs and TPUs.

- `xla_backend.py`: the backend, its options and its hooks. `devices.py`: what is installed, and which devices are used.
- `joining.py`: how ranks meet. `xla_group.py`, `transfers.py`: their process group, and tensors through the host.
- `patches.py`, `compiling.py`: what a job changes in torch_xla, torch and accelerate. `syncfree.py`: optimizers for
  float16.
- `graphs.py`: what the runtime compiles, and why. `tied.py`: parameters that modules share.
- `mesh.py`, `partition.py`, `sharding.py`: one program over a mesh of devices (SPMD). `checkpoint.py`: its checkpoints.

It is registered through the entry point ``cpudist.backends`` like a backend of another package. Only this folder
imports torch_xla, and only when a job starts on it. torch_xla ends with release 2.9; see docs/xla.md.
"""
