"""`cpudist test`: measure a job's hosts and their links, and report the slow or faulty ones.

It must not import launchers, Trainer's patches, programs or command lines.
"""
