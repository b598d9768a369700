"""End all ranks of a job and their launcher on every host after one rank fails or is lost, or the job stalls.

interruption.py: agree on the last step after a signal.

This package must not import jobs, observers, optimization, transformers, programs or command lines.
"""
