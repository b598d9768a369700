"""Manifests for Kubernetes, and a batch script for Slurm: pure functions from wishes to text.

One file for each kind; what pods of all kinds have in common is in pods.py. Nothing here talks to a cluster. It must
not know torch, MPI, jobs or command lines.
"""
