"""Measurements that users repeat on their own machines: `cpudist bench`.

- `timing.py`: contenders in turn, medians, spreads and ratios; arithmetic only.
- `measure.py`: timing calls on every rank.
- `collectives.py`, `ddp.py`, `train.py`: what is measured, and its table; `workload.py`: the model of the last two.
- `jobs.py`: whole jobs, started from outside (`start.py`) in all ways of `launchers.py`; they run
  `trainer_script.py` on what `corpus.py` writes.
- `report.py`: where it was measured, and the JSON; `table.py` and `plot.py`: how it is shown.

Contenders of one table always come from one run: between runs the machine changes more than they differ.
It must not know environments, Trainer's patches, recipes or command lines.
"""
