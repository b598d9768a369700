"""Checkpoints: complete or absent on the disk, of this run or of another one, of Trainer or of the user's own loop.

It must not import launchers, transformers, Trainer's patches, programs or command lines.
"""
