"""Measurements that users repeat on their own machines: `cpudist bench`.

- `timing.py`: candidates take turns; medians, spreads and ratios of their times.
- `collectives.py`, `ddp.py`, `hosts.py`, `train.py`: what is measured, and its table.
- `candidates.py`: what an allreduce is compared with; `workload.py`: the models that are trained.
- `jobs.py`: whole jobs, started from outside by the commands of `commands.py`; they run `trainer_script.py`.
- `report.py` and `plot.py`: tables, the JSON file, and figures.

Candidates of one table always come from one run: between runs the machine changes more than they differ. It must not
know launchers, Trainer's patches, recipes or command lines.
"""
