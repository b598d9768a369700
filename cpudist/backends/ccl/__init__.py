"""The ccl backend: `torch.distributed` collectives on oneCCL.

- `csrc/`: the process group in C++ (engine.hpp describes its progress) and, behind transport.hpp, its transports:
  oneCCL, shared memory, or a hierarchy of both.
- `toolchain.py`, `compilation.py`: find oneCCL; define the compilation (compiler.py runs it).
- `extension.py`: loads the compiled module once in a process, with the settings that oneCCL needs.
- `ccl_group.py`: creates one process group. `register.py`: registers its name with torch; `intel.py`: replaces Intel's
  binding.
- `ccl_backend.py`: the backend.
"""
