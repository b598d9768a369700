"""`cpudist test`: measure the hosts of a job and the links between them, and say what is out of line.

- `cluster_figures.py`: what was measured; the bandwidth is kept.
- `host_speed.py`: computing and memory of one host; `links.py`: messages between two hosts.
- `on_ranks.py`: the measurement, on every rank of a job.
- `judgement.py`: sentences about hosts and links that differ from the others.
- `tables.py`: the figures for a terminal.

It must not import launchers, Trainer's patches, programs or command lines.
"""
