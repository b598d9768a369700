"""Which rank computes on which cores, and how each launcher and library is told.

`place` makes a `Plan` from a machine and wishes: pure functions, so that any machine's plan can be made on any other.
The other files turn a plan into what one launcher or library reads. Nothing here starts a process or changes one. It
must not know torch, MPI or environments.
"""
