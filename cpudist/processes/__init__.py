"""Processes of this machine: how they are found, how they end, and how a rank that has ended is reported.

- `procfs.py`: read processes from /proc.
- `rank_or_child.py`: distinguish a rank from its children.
- `relay.py`: pass a child's output on.
- `lost_ranks.py`: find the first rank that was lost, and report it in a sentence.
- `silent_hosts.py`: name hosts that do not answer, before they count as lost.
- `ending.py`: end this process at once.

It must not import torch or MPI.
"""
