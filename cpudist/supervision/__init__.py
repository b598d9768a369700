"""End all ranks of a job and their launcher on every host after one rank fails or is lost, or the job stalls.

It must not import jobs, observers, optimization, transformers, programs or command lines.
"""
