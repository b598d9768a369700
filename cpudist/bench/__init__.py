"""Measurements that users repeat on their own machines: `cpudist bench`.

- `timing.py`: times candidates in turn; computes medians, spreads and ratios.
- `collectives.py`, `between_hosts.py`: the measurements and their tables.
- `rank_counts.py`: finds the fastest number of ranks on this machine; each rank runs `rank_steps.py`.
- `report.py`: tables, the JSON file, and pictures.

All candidates of a table are measured in one run, because times differ more between runs than between candidates.
It must not import launchers, Trainer's patches, programs or command lines.
"""
