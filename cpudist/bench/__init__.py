"""Measurements that users repeat on their own machines: `cpudist bench`.

- `timing.py`: candidates take turns; medians, spreads and ratios of their times.
- `collectives.py`, `between_hosts.py`: what is measured, and its table.
- `candidates.py`: what an allreduce is compared with; `workload.py`: the model that is trained.
- `report.py` and `plot.py`: tables, the JSON file, and figures.

Candidates of one table always come from one run: between runs the machine changes more than they differ. It must not
know launchers, Trainer's patches, programs or command lines.
"""
