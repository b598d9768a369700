"""Measurements that users repeat on their own machines: `cpudist bench`.

- `timing.py`: candidates take turns; medians, spreads and ratios of their times.
- `collectives.py`, `between_hosts.py`: the measurements and their tables.
- `rank_counts.py`: the fastest number of ranks here, by steps that `rank_steps.py` makes on each of them.
- `report.py` and `plot.py`: tables, the JSON file, and figures.

Candidates of one table always come from one run: from run to run the machine changes more than the candidates differ.
It must not import launchers, Trainer's patches, programs or command lines.
"""
