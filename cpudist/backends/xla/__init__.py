"""The xla backend: PyTorch/XLA's PJRT runtime on CPUs, GPUs and TPUs, behind the one interface.

- `versions.py`, `devices.py`: what must be installed, and which devices are used.
- `pod.py`: the workers of a TPU pod, which find each other.
- `backend.py`: the backend itself; `joining.py`: how its ranks come together.
- `host.py`, `group.py`, `several.py`: several CPU processes, which the runtime would train apart: everything that they
  tell each other goes through the host, over ccl or gloo.
- `buckets.py`: what DDP keeps of its buckets there.
- `launching.py`: what scripts call to start processes, or one program, where a launcher or --mesh has done so.
- `syncfree.py`: optimizers for float16 on GPUs.
- `graphs.py`: what the runtime compiled, and why it had to again.
- `spmd/`: one program over a mesh of devices.

Nothing else in cpudist imports torch_xla, and nothing here does before a job runs on it. torch_xla ends with release
2.9; see docs/xla.md.
"""
