"""Observe a job: its speed, its gradients, its stacks, and the rank that makes the others wait.

This package must not import jobs, optimization, transformers, programs or command lines.
"""
