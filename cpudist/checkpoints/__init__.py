"""Checkpoints of Trainer and of users' own loops. Each is complete or absent on the disk, and names its run.

This package must not import launchers, transformers, Trainer's patches, programs or command lines.
"""
