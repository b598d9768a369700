"""Processes of this machine: how they are found, how they end, and how a rank that has ended is reported.

This package must not import torch or MPI.
"""
