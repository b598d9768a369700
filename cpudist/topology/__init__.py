"""The machine that this process runs on, and which rank computes on which of its cores.

- `identity.py`: which machine this is, and at which addresses others reach it.
- `topology.py`: sockets, NUMA nodes, L3 groups and cores. `sysfs.py`, `lscpu.py` and `hwloc.py` read them; `files.py`
  opens the kernel's files or a copy of them, and `cpulist.py` parses its lists and masks.
- `limits.py`: what of the machine this process may use. `machine.py`: the topology and the limits together.
- `plan.py`: a `Plan` from a machine and options. It reads no file, so any machine's plan can be made on any other.
- `picture.py`: the plan as text. `thread_variables.py`: the variables by which OpenMP and oneCCL follow it.

Nothing is changed here. It must not know torch, MPI or launchers.
"""
