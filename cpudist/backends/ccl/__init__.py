"""The ccl backend: `torch.distributed` collectives on oneCCL.

- `csrc/`: the process group in C++ (engine.hpp says how it makes progress) and, behind transport.hpp, what carries its
  messages: oneCCL, shared memory, and a hierarchy of both; choice.cpp says which one when.
- `toolchain.py`, `build.py`: finding oneCCL and a compiler; compiling into a cache.
- `extension.py`: loading the result with the settings that oneCCL needs, once in a process.
- `group.py`: one process group; `register.py`: its name in torch; `intel.py`: Intel's own binding.
- `backend.py`: cpudist's `Backend` interface.
"""
