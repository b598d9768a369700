"""The xla backend: PyTorch/XLA's PJRT runtime on CPUs, GPUs and TPUs.

It is registered through the entry point ``cpudist.backends``, like backends of other packages. Only this folder imports
torch_xla, and only when a job starts on this backend. torch_xla's last release is 2.9; see docs/xla.md.
"""
