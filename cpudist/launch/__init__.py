"""Starting jobs: on which hosts, through whose launcher, with what command line.

It runs before any rank does and must not know torch, MPI, transformers, backends, jobs, optimization or recipes.
"""
