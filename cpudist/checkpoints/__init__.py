"""Checkpoints: complete or absent on the disk, of this run or of another one, and those of one's own training loops.

It must not know launchers, transformers, Trainer's patches, programs or command lines.
"""
