"""The ground floor: facts about the machine that this process runs on.

- `identity.py`: which machine this is, and where others reach it.
- `cpus.py`: which CPUs this process may use, and how many of them are left over.

It only reads and changes nothing. It must not know torch, MPI or environments.
"""
