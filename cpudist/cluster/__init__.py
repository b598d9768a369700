"""`cpudist test`: measure a job's hosts and their links, and report the slow or faulty ones.

- `cluster_figures.py`: the figures; stores the network's bandwidth for `cpudist forecast`.
- `measure.py`: measures the hosts and collectives, on every rank of a job; `links.py`: messages between two hosts.
- `judgement.py`: finds hosts and links that are slower than the others.

It must not import launchers, Trainer's patches, programs or command lines.
"""
