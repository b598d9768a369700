"""The ccl backend: `torch.distributed` collectives on oneCCL.

`csrc/` has the process group in C++ (engine.hpp describes its progress) and, behind transport.hpp, its transports:
oneCCL, MPI, shared memory, and a hierarchy of shared memory inside hosts and oneCCL or MPI between them.
"""
