"""The ground floor: facts about the machine that this process runs on.

- `identity.py`: which machine this is, and where others reach it.
- `cpus.py`: which CPUs this process may use, and how many of them are left over.
- `topology.py`: sockets, NUMA nodes, L3 groups and cores; `description.py`: those of this machine, or of another one
  from a file, as `sysfs.py`, `lscpu.py` and `hwloc.py` read them, and what `limits.py` and `cgroups.py` leave of them.
- `memory_policy.py`: on which NUMA node pages are placed.

It only reads, but for `memory_policy.py`. It must not know torch, MPI or environments.
"""
