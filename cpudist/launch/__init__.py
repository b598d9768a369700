"""Starting jobs: on which hosts, through whose launcher, with what command line.

- `hostfile.py`: the hosts of a file, and the form that each MPI takes. `launchers/`: one file for each MPI.
- `check.py`: what is wrong with the hosts, asked all at once; `remote.py`: programs on other hosts.
- `run.py`: who runs where, and starting again. `attempt.py`: one attempt, from its start until nothing of it is left.
- `guards.py`, `guard.py`: who ends the job's processes on each host, seen from here and as it runs there.

It runs before any rank does and must not know torch, MPI, transformers, backends, jobs, optimization or recipes.
"""
