"""The ccl backend: `torch.distributed` collectives on oneCCL.

`csrc/` has the process group in C++ (engine.hpp describes its progress) and, behind transport.hpp, its transports:
oneCCL, shared memory, or a hierarchy of both.
"""
